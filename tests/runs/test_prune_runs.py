"""A pruning as a run: one kind of folder for all methods."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from dap.config import FinetuneConfig, PruneConfig, TrainConfig
from dap.data import DOMAINS, SUITES, load_suite
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.masks.attach import bake
from dap.report import read_records
from dap.report.overlaps import read_overlaps
from dap.runs import (
    PruneSpec,
    TrainSpec,
    divide,
    load_pruned,
    prune_dense,
    read_metrics,
    read_spec,
    train_dense,
)
from dap.runs.dense import load_dense
from dap.runs.opening import open_dense
from dap.runs.rehearsal import rehearse
from dap.specs import identity
from dap.specs.methods import METHODS
from small_prunings import dense_training, spec_of
from small_studies import small_suite, write_as_before


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return dense_training(tmp_path_factory.mktemp("runs") / "dense")


@pytest.mark.parametrize("method", METHODS)
def test_results_do_not_tell_methods_apart(method, dense, tmp_path):
    result = prune_dense(spec_of(dense, method), tmp_path / "run")
    assert set(result) == {"spec", "method", "title", "dense", "sparse"}
    wished = "0.0" if METHODS[method].whole else "0.5"
    assert list(result["sparse"]) == (["0.0"] if METHODS[method].whole else ["0.3", "0.5"])
    row = result["sparse"][wished]
    assert set(row["validation"]) == {"outline", "plain", "textured"}
    assert set(row["targets"]["rotated"]) == {"80 %", "20 %", "all"}

    model, masks, card = load_pruned(tmp_path / "run", wished)
    assert masks.sparsity == row["sparsity"] == pytest.approx(float(wished), abs=0.05)
    assert card.notes["targets"] == ["rotated"]
    assert all(model.get_parameter(name)[~mask].eq(0).all() for name, mask in masks.items())
    suite = load_suite(small_suite(), pixels=16)
    unseen = suite.domains["rotated"]
    assert accuracy(model, unseen) == pytest.approx(row["targets"]["rotated"]["all"])
    held_out = divide(suite, ("rotated",), seed=2).held_out["plain"]
    assert accuracy(model, held_out) == row["validation"]["plain"]
    if not row["weights moved"]:
        unmoved = bake(load_dense(dense)[0], masks)
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in unmoved.state_dict().items())
    assert prune_dense(spec_of(dense, method), tmp_path / "run") == result
    assert read_spec(tmp_path / "run") == spec_of(dense, method).resolved()


@pytest.mark.parametrize("method", ["movement", "dap", "ior"])
def test_a_stopped_run_goes_on_to_the_same_result(method, dense, tmp_path):
    spec = spec_of(dense, method)
    last = {"movement": ("movement", 1), "dap": ("mask learning", 2), "ior": ("fine-tuning at 0.5", 1)}[method]

    def stop(news):
        if (news.stage, news.step) == last:
            raise OSError("the lamp went out")

    with pytest.raises(OSError, match="lamp"):
        prune_dense(spec, tmp_path / "run", on_step=stop)
    assert (tmp_path / "run" / "0.3" / "result.json").exists() is (method == "ior")
    assert not (tmp_path / "run" / "result.json").exists()
    again: list[str] = []
    resumed = prune_dense(spec, tmp_path / "run", on_step=lambda news: again.append(f"{news.stage} {news.step}"))
    if method == "ior":  # neither the masks that were done nor the first step of the other
        assert [line for line in again if "fine" in line] == ["fine-tuning at 0.5 2"]
    else:
        assert len(again) == 1  # the last step
    assert resumed == prune_dense(spec, tmp_path / "other")
    first, second = (load_pruned(tmp_path / name, "0.5")[0].state_dict() for name in ("run", "other"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert not list((tmp_path / "run").glob("finetuning*"))


def test_weights_that_moved_are_not_made_up(dense, tmp_path):
    prune_dense(replace(spec_of(dense, "magnitude"), finetuned=True), tmp_path / "run")
    (tmp_path / "run" / "0.5" / "model.safetensors").unlink()
    with pytest.raises(DapError, match=r"model.safetensors is missing: restore it"):
        load_pruned(tmp_path / "run", 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsities": (50.0,)}, "sparsity is 50.0"),
        ({"sparsities": ()}, "there are no sparsities: give at least one"),
        ({"method": "dap", "sparsities": ()}, "there are no sparsities: give at least one"),
        ({"allocation": "foo"}, "there is no allocation 'foo'"),
        ({"method": "dap", "sparsities": (0.97,)}, "mask learning ends at target_sparsity=0.6: raise it to reach 0.97"),
        ({"prune": PruneConfig(include=("nothing*",))}, "no maskable weight matches 'nothing\\*'"),
        ({"method": "ior", "finetune": FinetuneConfig(steps=0)}, "steps is 0"),
        ({"method": "movement", "finetune": FinetuneConfig(learning_rate=-1.0)}, "learning_rate is -1.0"),
    ],
)
def test_what_is_wrong_takes_no_folder(changes, message, dense, tmp_path):
    with pytest.raises(DapError, match=message):
        prune_dense(replace(spec_of(dense, "magnitude"), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_source_domain_is_too_few_for_sensitivity(dense, tmp_path):
    spec = read_spec(dense)
    assert isinstance(spec, TrainSpec)
    train_dense(replace(spec, targets=("outline", "plain", "rotated"), objective="erm"), tmp_path / "one")
    with pytest.raises(DapError, match="only 1: give at least two, or set alpha=0"):
        prune_dense(spec_of(tmp_path / "one", "dap"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert prune_dense(spec_of(tmp_path / "one", "agnostic"), tmp_path / "run")["sparse"]


@pytest.mark.parametrize("by_folder", [True, False])
def test_the_papers_values_are_those_of_the_suite(by_folder, tmp_path, monkeypatch):
    """PACS in miniature: the paper has values for it, and a batch size for DomainNet."""
    monkeypatch.setitem(SUITES, "PACS", replace(SUITES["PACS"], images=dict.fromkeys(DOMAINS, 20), classes=2))
    shutil.copytree(small_suite(), tmp_path / "PACS")
    train = TrainConfig(steps=2, batch_size=4, freeze_norms=False)
    options = {"pixels": 16, "backbone": "small_resnet", "weights": None}
    spec = TrainSpec("PACS", ("rotated",), str(tmp_path), train=train, **options)
    train_dense(spec, tmp_path / "dense")
    paper = PruneConfig("paper", steps=2, target_sparsity=0.6, batch_size=4)
    asked = PruneSpec(str(tmp_path / "dense") if by_folder else spec, "dap", (0.5,), prune=paper)
    prune_dense(asked, tmp_path / "run", dense=tmp_path / "dense")
    kept = read_spec(tmp_path / "run")
    assert isinstance(kept, PruneSpec)
    assert (kept.prune.alpha, kept.prune.f_start, kept.prune.f_update) == (2.0, 10_000, 30)
    assert PruneSpec(replace(spec, suite="DomainNet"), prune=PruneConfig("paper")).resolved().prune.batch_size == 16


def test_what_a_dense_training_left_open_has_its_values(dense, tmp_path):
    """Fine-tuning goes on as training did, also from a folder that was made when these were not kept."""
    older = shutil.copytree(dense, tmp_path / "older")
    values = json.loads((older / "spec.json").read_text())
    assert values["spec"]["train"]["check_every"] == 300
    values["spec"]["train"]["check_every"] = None
    write_as_before(older / "spec.json", values)
    write_as_before(older / "result.json")
    assert open_dense(spec_of(older, "random"), tmp_path / "run").train == read_spec(dense).train
    values["id"] = "0123456789ab"  # as if what was left open were something else now
    write_as_before(older / "spec.json", values)
    with pytest.raises(DapError, match="asks for something else in this version of dap: make the run again"):
        read_spec(older)


def test_raw_masks_beside_averaged_ones(dense, tmp_path):
    config = PruneConfig(steps=20, target_sparsity=0.8, batch_size=4, average=0.5)
    spec = replace(spec_of(dense, "dap", raw=True), prune=config)
    both = prune_dense(spec, tmp_path / "both")
    alone = prune_dense(replace(spec, raw=False, prune=replace(config, average=0.0)), tmp_path / "alone")
    assert both["raw"] == alone["sparse"]
    assert list(both["raw"]) == ["0.3", "0.5"]
    averaged = prune_dense(replace(spec, raw=False), tmp_path / "averaged")
    assert both["sparse"] == averaged["sparse"] != both["raw"]
    assert "raw" not in averaged
    files = [folder / "0.5" / "masks.safetensors" for folder in (tmp_path / "both" / "raw", tmp_path / "alone")]
    assert files[0].read_bytes() == files[1].read_bytes()

    content = files[0].read_bytes()
    files[0].unlink()
    (half := files[0].with_name(".masks.safetensors.abcd1234")).touch()  # of a process that was killed
    assert prune_dense(spec, tmp_path / "both") == both
    assert files[0].read_bytes() == content
    assert not half.exists()
    records = {(one.run, one.method): one for one in read_records(tmp_path / "both") if one.wished == "0.5"}
    raw = records["both/raw", "DAP, raw masks"]
    assert raw.unseen == both["raw"]["0.5"]["targets"]["rotated"]["all"]
    assert records["both", "DAP"].series == "DAP"
    (pair,) = [one for one in read_overlaps(tmp_path / "both", list(records.values())) if one.one.wished == "0.5"]
    assert pair.between == "methods"
    assert 0 < pair.overlap < 1

    assert identity(spec) != identity(replace(spec, raw=False))
    with pytest.raises(DapError, match=r"averaged holds a run with no raw: choose another folder"):
        prune_dense(spec, tmp_path / "averaged")
    wrong = {"method": "taylor"}, {"allocation": "global"}, {"finetuned": True}, {"recalibrated": True}
    for change in (*wrong, {"prune": replace(config, average=0.0)}):
        with pytest.raises(DapError, match="raw masks come beside averaged ones: they need method dap or agnostic"):
            prune_dense(replace(spec, **change), tmp_path / "wrong")
    with pytest.raises(DapError, match="raw masks come beside averaged ones"):
        rehearse(replace(spec, method="taylor"))
    assert not (tmp_path / "wrong").exists()


def test_watched_mask_learning_comes_out_the_same(dense, tmp_path):
    plain = prune_dense(spec_of(dense, "dap"), tmp_path / "plain")
    watched = prune_dense(spec_of(dense, "dap", watch_every=2), tmp_path / "watched")
    assert watched["sparse"] == plain["sparse"]
    rows = {row["step"]: row for row in read_metrics(tmp_path / "watched") if "watched" in row}
    assert {2, 3} <= set(rows)
    assert set(rows[2]["watched"]) == {"rotated"}
    assert set(rows[2]["validation"]) == {"outline", "plain", "textured"}
    assert not any("watched" in row for row in read_metrics(tmp_path / "plain"))
    with pytest.raises(DapError, match="watch_every is 0"):
        prune_dense(spec_of(dense, "dap", watch_every=0), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    ids = {watch: identity(spec_of(dense, "magnitude", watch_every=watch)) for watch in (None, 2)}
    assert ids[None] == ids[2]  # it does not look


def test_patterns_have_a_folder_too(dense, tmp_path):
    spec = replace(spec_of(dense, "magnitude", allocation="2:4"), sparsities=None)
    assert list(prune_dense(spec, tmp_path / "run")["sparse"]) == ["2:4"]
    _, masks, _ = load_pruned(tmp_path / "run", "2:4")
    assert masks["network.head.weight"].view(2, 24, 4).sum(2).eq(2).all()
