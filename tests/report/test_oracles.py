"""A yardstick that selects nothing."""

import json
from statistics import fmean, stdev

import pytest

from dap.report.oracles import oracle_table, read_oracles
from dap.report.statistics import Mean
from dap.report.writing import read_contents
from dap.studies import read_study
from dap.studies.work import work_on


def results(study):
    return [json.loads(file.read_text()) for file in sorted(study.folder.glob("train-*/result.json"))]


def test_of_one_training_it_is_the_last_checkpoint(study, records):
    (table,) = (one for one in read_contents(study.folder).tables if one.name == "oracle")
    (row,) = table.rows
    last = [result["watched, not selected by"]["4"]["a 80 %"] for result in results(study)]
    chosen = [result["targets"]["a"]["80 %"] for result in results(study)]
    assert row.cells[:2] == ("images", "Dense")
    for cell, values in zip(row.cells[2:], (chosen, last), strict=True):
        assert isinstance(cell, Mean)
        assert (cell.mean, cell.spread, cell.seeds) == (pytest.approx(fmean(values)), pytest.approx(stdev(values)), 2)


def test_of_a_search_it_is_the_best_trial_on_the_other_part(study, tmp_path, monkeypatch):
    text = next((study.folder / "studies").glob("*")).read_text().partition("prune:")[0]
    monkeypatch.setenv("DAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "search.yaml").write_text(text.replace("seed: [0, 1]", "seed: 0\n  search: {trials: 3, seed: 0}"))
    search = read_study(tmp_path / "search.yaml", tmp_path / "runs")
    for run, spec in search.runs.items():
        assert work_on(spec, search.folder, lambda progress: None) == ("done", ""), run
    (table,) = (one for one in read_contents(search.folder).tables if one.name == "oracle")
    last = [result["watched, not selected by"]["4"] for result in results(search)]
    best = max(last, key=lambda scores: scores["a 20 %"])
    assert len(last) == 3
    assert table.rows[0].cells[3].mean in {one["a 80 %"] for one in last if one["a 20 %"] == best["a 20 %"]}


def test_what_has_no_unseen_domain_or_no_training_has_no_oracle(study, records):
    assert oracle_table([]) is None
    prunings = [record for record in records if record.run.startswith("prune-")]
    assert list(read_oracles(study.folder, prunings)) == []
