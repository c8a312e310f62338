"""From the folders of real runs."""

import json
import re
import shutil
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from dap.errors import DapError
from dap.evaluation.bits import pack_bits, unpack_bits
from dap.report import read_findings, read_records
from dap.report.charts import Look
from dap.report.figures import dynamics, layers
from dap.report.tables import image_differences, overview
from dap.report.writing import read_contents
from dap.runs import evaluate_run, read_spec
from dap.runs.evaluating import content_of
from dap.runs.opening import place_of
from dap.specs import EvaluateSpec, TrainSpec, folder_name, identity, read
from dap.studies.work import work_on
from small_studies import THREE, make_study, write_as_before


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
        assert record.domainbed == row["targets"]["plain"]["80 %"]
        table = overview([record], "domainbed")
        assert table.rows[0].cells[1].mean == record.domainbed
        assert (record.suite, record.targets, record.seed) == ("images", ("plain",), 0)
        assert record in read_records(study.folder / record.run)
    dense = next(record for record in records if record.wished is None)
    assert dense.run.startswith("train-")
    next(study.folder.glob("prune-*/result.json")).unlink()
    assert len(read_records(study.folder)) == 2  # what is not done is missing, not 0
    next(study.folder.glob("train-*/result.json")).unlink()
    again = [record for record in read_records(study.folder) if record.wished is None]
    assert [(one.unseen, one.validation) for one in again] == [
        (dense.unseen, dense.validation)
    ]  # prunings know it, too


def test_findings_of_a_study(study, records, findings):
    assert {record.suite for record in records} == {"images"}  # the folder's name
    assert {finding.case for finding in findings.robustness} == {"clean", "fgsm"}
    models = {(one.series, one.wished, one.targets, one.seed) for one in records}
    assert len(models) == len(records)
    assert {(one.series, one.wished, one.targets, one.seed) for one in findings.robustness} == models
    # The dense model, the control, and three methods at two sparsities; two seeds, both sides; clean, five severities.
    assert len(findings.robustness) == (1 + 1 + 3 * 2) * 2 * 2 * 6
    assert sorted({found.record.series for found in findings.histograms}) == ["DAP", "DAP, α = 0"]
    steps = {series: {point.step for point in findings.points if point.series == series} for series in ("Dense", "DAP")}
    assert steps["Dense"] == {1, 3, 4}
    assert {4, 8} <= steps["DAP"]


def test_a_curve_is_of_the_same_runs_all_along(findings):
    dense = [point for point in findings.points if point.series == "Dense"]
    last = max(point.step for point in dense)
    shorter = [point for point in dense if (point.seed, point.step) != (0, last)]  # it ran out of patience
    (panel, _) = dynamics(shorter, Look(("Dense",), "0.5")).panels.values()
    (rows,) = panel.datasets.values()
    assert max(row["step"] for row in rows) < last
    assert {row["seeds"] for row in rows} == {2}
    waiting = [replace(point, expected=(("a",), ("b",))) for point in dense]
    assert dynamics(waiting, Look(("Dense",), "0.5")).panels == {}


def test_curves_of_earlier_versions_are_in_their_log(study, findings, tmp_path):
    shutil.copytree(study.folder, tmp_path / "runs")
    for file in (tmp_path / "runs").glob("prune-*/result.json"):
        result = json.loads(file.read_text())
        result.pop("curve", None)
        write_as_before(file, result)
    for file in (tmp_path / "runs").glob("evaluate-*/result.json"):
        spec, result = read_spec(file.parent), json.loads(file.read_text())
        assert isinstance(spec, EvaluateSpec)
        write_as_before(file, {**result, "content": content_of(place_of(spec.run, file.parent))})
    again = read_findings(tmp_path / "runs", read_records(tmp_path / "runs"))
    assert sorted(map(repr, again.points)) == sorted(map(repr, findings.points))


def test_folders_keep_the_values_of_presets(study):
    specs = [read_spec(file.parent) for file in study.folder.glob("*/spec.json")]
    assert {spec.kind for spec in specs} >= {"train", "prune", "evaluate"}
    assert all(spec == spec.resolved() for spec in specs)


def test_kinds_of_evaluations_are_chosen_apart(study, records, findings, tmp_path):
    shutil.copytree(study.folder, tmp_path / "runs")
    for number, file in enumerate(sorted((tmp_path / "runs").glob("evaluate-*/spec.json"))):
        values = json.loads(file.read_text())
        if number:  # all others have attacks with other settings
            values["spec"]["seed"] = 1
            spec = read(EvaluateSpec, values["spec"], "spec")
            values["id"] = identity(spec)
            write_as_before(file, values)
            write_as_before(file.with_name("result.json"))
            file.parent.rename(file.parents[1] / folder_name(spec))
    again = read_findings(tmp_path / "runs", records)
    assert len(again.histograms) == len(findings.histograms)
    assert 0 < len(again.robustness) < len(findings.robustness)


def test_an_evaluation_of_some_unseen_domains_waits_for_these_alone(study, findings, tmp_path):
    (targets,) = {finding.targets for finding in findings.robustness}
    assert {finding.expected for finding in findings.robustness} == {(targets,)}
    shutil.copytree(study.folder, tmp_path / "runs")
    kept = tmp_path / "runs" / "studies" / "study.yaml"
    more = kept.read_text().replace(f"target: {targets[0]}", f"target: [{targets[0]}, b]")
    kept.write_text(more)
    both = tuple(sorted([targets, ("b",)]))
    assert {finding.expected for finding in _read_findings(tmp_path / "runs")} == {both}
    other = kept.with_name("other.yaml")  # whose runs are in the same folder
    other.write_text(more.replace(", b]", ", c]"))
    every = (("a",), ("b",), ("c",))
    assert {finding.expected for finding in _read_findings(tmp_path / "runs")} == {every}
    other.unlink()
    without = more.partition("evaluate:")[0]
    kept.write_text(without)
    assert {record.expected for record in read_records(tmp_path / "runs")} == {both}
    assert {finding.expected for finding in _read_findings(tmp_path / "runs")} == {()}


def _read_findings(folder):
    return read_findings(folder, read_records(folder)).robustness


def test_a_point_is_what_the_run_saw(study, records, findings):
    dense = next(one for one in records if one.series == "Dense")
    result = json.loads((study.folder / dense.run / "result.json").read_text())
    (last,) = [
        point
        for point in findings.points
        if (point.series, point.targets, point.seed, point.step) == ("Dense", dense.targets, dense.seed, 4)
    ]
    assert last.validation == fmean(result["validation"][-1]["accuracy"].values())
    watched = result["watched, not selected by"]["4"]
    assert last.unseen == pytest.approx(
        fmean([watched[f"{dense.targets[0]} 80 %"]] * 4 + [watched[f"{dense.targets[0]} 20 %"]])
    )


def test_folders_may_have_any_name(study, records, tmp_path):
    shutil.copytree(study.folder, tmp_path / "runs", ignore=shutil.ignore_patterns("studies", "evaluate-*"))
    for number, run in enumerate(sorted((tmp_path / "runs").glob("prune-*"))):
        run.rename(run.with_name(f"a{number}"))  # before those of trainings
    tables = {table.name: table for table in read_contents(tmp_path / "runs").tables}
    before = {table.name: table for table in read_contents(study.folder).tables}
    assert tables["oracle"] == before["oracle"]
    assert tables["overview-unseen"].rows == before["overview-unseen"].rows
    alone = read_contents(tmp_path / "runs" / "a0").tables
    assert "oracle" not in {table.name for table in alone}


def test_an_evaluation_in_a_run_is_of_that_run(study, tmp_path):
    shutil.copytree(study.folder, tmp_path / "runs", ignore=shutil.ignore_patterns("studies", "evaluate-*"))
    run = next(record.run for record in read_records(study.folder) if record.method == "Magnitude")
    first = (tmp_path / "runs" / run).rename(tmp_path / "runs" / "first")
    evaluate_run(EvaluateSpec(str(first), attacks=("fgsm",), images=1), first / "evaluation-of-it")
    first.rename(tmp_path / "runs" / "mine")
    other = next(record.run for record in read_records(study.folder) if record.method == "DAP")
    (tmp_path / "runs" / other).rename(first)  # another takes its name
    found = {one.series for one in _read_findings(tmp_path / "runs") if one.wished}
    assert found == {"Magnitude"}


def test_models_that_lack_two_domains_are_apart(study, records, tmp_path):
    shutil.copytree(study.folder, tmp_path / "runs", ignore=shutil.ignore_patterns("studies", "evaluate-*"))
    spec = next(spec for spec in study.runs.values() if isinstance(spec, TrainSpec))
    assert work_on(replace(spec, targets=("a", "b")), tmp_path / "runs", lambda progress: None) == ("done", "")
    again = read_records(tmp_path / "runs")
    assert {record.suite for record in again} == {"images", "images (2 unseen)"}
    means = {one.cells[1]: one.cells[2:] for one in overview(again).rows if one.cells[0] == "images"}
    assert means == {one.cells[0]: one.cells[1:] for one in overview(records).rows}


def test_no_runs(tmp_path):
    with pytest.raises(DapError, match="there are no runs in"):
        read_records(tmp_path)
    assert read_findings(tmp_path, []).points == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("prune-*/result.json", "{}"),
        ("train-*/result.json", "[]"),
        ("evaluate-*/result.json", '{"models": 3}'),
        ("train-*/environment.json", "[]"),
        ("prune-*/result.json", None),  # an accuracy is no number
        ("prune-*/result.json", "sparsity"),
    ],
)
def test_a_damaged_file_is_named(file, text, study, tmp_path):
    shutil.copytree(study.folder, tmp_path / "runs")
    broken = sorted((tmp_path / "runs").glob(file))[0]
    write_as_before(broken)  # no digest tells
    whole = re.sub(r'"all": [\d.]+', '"all": NaN', broken.read_text(), count=1)
    if text == "sparsity":
        whole, text = re.sub(r'"sparsity": [\d.]+', '"sparsity": "x"', broken.read_text(), count=1), None
    broken.write_text(whole if text is None else text)
    with pytest.raises(DapError, match=rf"{broken} is damaged .*: remove the run's folder to start again"):
        read_contents(tmp_path / "runs")


def test_the_control_is_a_dense_model_of_its_own(records):
    (one, other) = [record for record in records if record.series == "Dense, trained on"]
    assert {one.seed, other.seed} == {0, 1}
    assert (one.wished, one.sparsity, one.dense) == (None, 0.0, "Dense")


def test_layers_are_numbered_for_every_network(records):
    ours = next(record for record in records if record.series == "DAP")
    two = [replace(ours, series=name, layers={f"{name}.{place}": 0.5 for place in range(3)}) for name in ("one", "two")]
    (panel,) = layers(two, Look(("one", "two"), "0.5")).panels.values()
    (rows,) = panel.datasets.values()
    assert [(row["series"], row["place"]) for row in rows] == [(one.series, at) for one in two for at in (1, 2, 3)]


def test_which_images_are_right_is_kept(records, findings):
    for record in records:
        (bits,) = record.right.values()
        assert unpack_bits(bits).mean() == pytest.approx(record.unseen)
        assert len(unpack_bits(bits)) == 20
    attacked = [one for one in findings.robustness if one.case == "fgsm"]
    assert attacked
    for finding in attacked:
        assert fmean(unpack_bits(bits).mean() for bits in finding.right.values()) == pytest.approx(finding.accuracy)


def test_images_are_compared_one_by_one():
    def bits(*flags):
        return {("a",): {"a": pack_bits(torch.tensor(flags, dtype=torch.bool))}}

    (found,) = image_differences({0: bits(1, 1, 0, 0)}, {0: bits(1, 0, 1, 0)}).values()
    assert [one.tolist() for one in found] == [[0, 1, -1, 0]]
    assert image_differences({0: bits(1, 1)}, {0: bits(1, 0, 1)}) == {}  # of other images
    assert image_differences({0: bits(1, 1)}, {1: bits(1, 1)}) == {}
    assert image_differences({0: {("a",): {}}}, {0: {("a",): {}}}) == {}
