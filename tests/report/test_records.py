"""From the folders of real runs."""

import json

import pytest

from dap.errors import DapError
from dap.report import make_table, read_records
from dap.studies.work import work_on
from small_studies import THREE, make_study


def test_records_of_a_study(tmp_path):
    study = make_study(tmp_path, THREE)
    for spec in study.runs.values():
        assert work_on(spec, study.folder, lambda progress: None) == ("done", "")
    records = read_records(study.folder)
    assert sorted((record.method, record.wished) for record in records) == [
        ("DAP", "0.5"), ("Dense", None), ("Magnitude", "0.5")
    ]  # fmt: skip
    for record in records:
        result = json.loads((study.folder / record.run / "result.json").read_text())
        row = result["sparse"]["0.5"] if record.wished else result
        assert record.unseen == row["targets"]["plain"]["all"]
        assert (record.suite, record.targets, record.seed) == ("digits", ("plain",), 0)
        assert read_records(study.folder / record.run) == [record]
    assert list(make_table(records).rows) == ["Dense", "Magnitude", "DAP"]
    next(study.folder.glob("train-*/result.json")).unlink()
    assert len(read_records(study.folder)) == 2  # what is not done is missing, not 0


def test_no_runs(tmp_path):
    with pytest.raises(DapError, match="there are no runs in"):
        read_records(tmp_path)
