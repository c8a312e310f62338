"""Agreement of masks, against counting weight by weight."""

from dataclasses import replace

import pytest
import torch

from dap.masks import Masks
from dap.report.overlaps import overlap_table, read_overlaps
from dap.specs.file_names import MASKS, folder_of


def test_pairs_differ_in_one_thing(study, records):
    found = read_overlaps(study.folder, records)
    assert {one.between for one in found} == {"methods", "seeds"}
    # Three methods at two sparsities: three pairs of methods for each seed, one pair of seeds for each method.
    assert len(found) == 2 * (3 * 2 + 3)
    for one in found[:4]:
        files = [folder_of(study.folder / model.run, model.wished) / MASKS for model in (one.one, one.other)]
        first, second = map(Masks.load, files)
        both = sum(int((first[name] & second[name]).sum()) for name in first)
        either = sum(int((first[name] | second[name]).sum()) for name in first)
        assert one.overlap == pytest.approx(both / either)
        assert one.one.wished == one.other.wished
    assert len(read_overlaps(study.folder, records, only=found[0].one.run)) == 2 * (2 + 1)


def test_pairs_have_one_name_whatever_the_order_of_runs(study, records):
    tables = [overlap_table(read_overlaps(study.folder, found)) for found in (records, records[::-1])]
    assert tables[0] == tables[1]


def test_masks_of_another_network_are_left_out(tmp_path, records):
    ours = next(record for record in records if record.series == "DAP")
    models = {"a": torch.ones(4).bool(), "b": torch.tensor([True, False, True, False]), "c": torch.ones(5).bool()}
    for run, mask in models.items():
        Masks({"layer": mask}).save(folder_of(tmp_path / run, "0.5") / MASKS)
    three = [replace(ours, run=run, series=run, wished="0.5") for run in models]
    (found,) = read_overlaps(tmp_path, three)
    assert (found.one.run, found.other.run, found.overlap, found.by_chance) == ("a", "b", 0.5, 0.5)
