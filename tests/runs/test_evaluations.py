"""Evaluations of real runs with everything that can be asked for."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dap.cli import main
from dap.config import PruneConfig, TrainConfig
from dap.evaluation.autoattack import AutoAttack
from dap.evaluation.fgsm import FGSM
from dap.models import save_classifier
from dap.report import all_tables, read_findings, read_records
from dap.report.table import file_name
from dap.runs import (
    EvaluateSpec,
    PruneSpec,
    TrainSpec,
    evaluate_run,
    prune_dense,
    read_metrics,
    train_dense,
)
from dap.runs.dense import load_dense
from dap.specs import identity
from small_studies import small_suite

DENSE = TrainSpec(
    str(small_suite()),
    ("plain",),
    pixels=32,
    backbone="small_resnet",
    weights=None,
    train=TrainConfig(40, 2e-3, batch_size=8, freeze_norms=False),
)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    train_dense(DENSE, folder / "dense")
    for name, method in {"prune-dap": "dap", "magnitude": "magnitude"}.items():
        config = PruneConfig(steps=20, batch_size=8, target_sparsity=0.9)
        prune_dense(PruneSpec(str(folder / "dense"), method, (0.5,), prune=config), folder / name)
    return folder


def rows(file: Path) -> list[dict[str, str]]:
    with open(file) as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_everything_at_once(study, tmp_path, capsys):
    pytest.importorskip("imagecorruptions", reason="needs imagecorruptions-imaug: pip install 'dap[robustness]'")
    out = tmp_path / "out"
    arguments = ["evaluate", str(study / "prune-dap"), "--attacks", "fgsm,pgd", "--corruptions", "--images", "3"]
    assert main([*arguments, "--interpret", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["models"]) == ["dense", "0.5"]
    for name in found["files"]:
        assert (out / name).stat().st_size > 0
    assert {"attacks.svg", "corruptions.png", "logits.pdf", "layers.csv", "activation_maps.png"} <= set(found["files"])
    attacked = rows(out / "attacks.csv")
    assert len(attacked) == 2 * 2 * 5 * 4  # models, attacks, severities, domains
    assert {row["unseen"] for row in attacked if row["domain"] == "plain"} == {"True"}
    assert all(row["images"] == "3" for row in attacked)
    assert len(rows(out / "corruptions.csv")) == 2 * 4 * 75
    for model in found["models"].values():
        assert set(model["corruptions"]) == {"plain", "outline", "rotated", "textured"}
    relative = {
        name: [row["relative_error"] for row in model["corruptions"].values()]
        for name, model in found["models"].items()
    }
    assert {round(one, 6) for one in relative["dense"] if one is not None} == {1.0}  # None: it makes no error
    assert max(one for one in relative["0.5"] if one is not None) > 0
    assert len(rows(out / "corruption_means.csv")) == 2 * 4
    assert len(rows(out / "worst_domains.csv")) == 2 * (1 + 2 * 5 + 1)
    (overlap,) = rows(out / "overlaps.csv")
    assert {overlap["one_method"], overlap["other_method"]} == {"DAP", "Magnitude"}
    assert overlap["between"] == "methods"
    assert (overlap["one_seed"], overlap["one_unseen"]) == ("0", "plain")
    assert float(overlap["overlap"]) > float(overlap["by_chance"])
    findings = read_findings(study, read_records(study)).robustness
    assert findings == []  # it was kept elsewhere
    with Image.open(out / "activation_maps.png") as picture:
        assert picture.size == (3 * 32, 4 * 4 * 32)
    kept = json.loads((study / "prune-dap" / "result.json").read_text())["sparse"]["0.5"]
    assert found["models"]["0.5"]["targets"]["plain"]["all"]["accuracy"] == pytest.approx(
        kept["targets"]["plain"]["all"]
    )
    assert main([*arguments, "--interpret", "--out", str(out)]) == 0  # it is there
    assert main([*arguments, "--out", str(out)]) == 1  # another question


def test_stopped_it_goes_on_and_says_the_same(study, tmp_path):
    spec = EvaluateSpec(str(study / "prune-dap"), attacks=("fgsm",), images=2)
    whole = evaluate_run(spec, tmp_path / "whole")

    def stop(stage, number, count):
        if (stage, number) == ("attacks", 7):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_run(spec, tmp_path / "stopped", on_step=stop)
    assert len(read_metrics(tmp_path / "stopped")) == 7
    assert evaluate_run(spec, tmp_path / "stopped") == whole
    assert len(read_metrics(tmp_path / "stopped")) == 2 * 5  # none was made twice


def test_severities_can_be_chosen(study, capsys):
    run = str(study / "prune-dap")
    assert main(["evaluate", run, "--attacks", "fgsm", "--severities", "3,5", "--images", "2", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [list(model["attacks"]["fgsm"]) for model in models.values()] == [["3", "5"]] * 2
    for wrong in ("0", "6", "three", ""):
        assert main(["evaluate", run, "--attacks", "fgsm", "--severities", wrong]) != 0
        assert "severities" in capsys.readouterr().err
    spec = EvaluateSpec(run, attacks=("fgsm",))
    assert identity(spec) == identity(replace(spec, severities=(5, 4, 3, 2, 1)))
    assert identity(spec) != identity(replace(spec, severities=(3,)))


def test_autoattack_on_few_images_is_reported_beside_other_attacks_on_many(study, tmp_path, monkeypatch):
    def stand_in(attack, *images):  # AutoAttack itself takes minutes, and has tests of its own
        return FGSM(attack.epsilon)(*images)

    monkeypatch.setattr(AutoAttack, "__call__", stand_in)
    shutil.copytree(study, tmp_path / "study", ignore=shutil.ignore_patterns("evaluation-*"))
    run = tmp_path / "study" / "prune-dap"
    for name, attacks, count in (("evaluation-many", ("fgsm",), 8), ("evaluation-few", ("fgsm", "auto"), 2)):
        spec = EvaluateSpec(str(run), attacks=attacks, severities=(5,), images=count)
        evaluate_run(spec, run / name)
    records = read_records(tmp_path / "study")
    findings = read_findings(tmp_path / "study", records).robustness
    assert {(one.kind, one.case, one.images) for one in findings} == {
        ("attacks", "clean", "At most 8 images of each domain."),
        ("attacks", "fgsm", "At most 8 images of each domain."),
        ("autoattack", "clean", "At most 2 images of each domain."),
        ("autoattack", "auto", "At most 2 images of each domain."),
    }
    tables = {table.name: table for table in all_tables(records, findings)}
    (suite,) = {record.suite for record in records}
    assert tables[file_name("autoattack", suite)].note.startswith("At most 2 images")
    assert tables[file_name("attacks", suite)].note.startswith("At most 8 images")


def test_a_model_that_cannot_be_attacked_does_not_hide_the_others(study, tmp_path, capsys):
    out = tmp_path / "collapsed"
    prune_dense(PruneSpec(str(study / "dense"), "random", (0.3, 0.999)), out)
    assert main(["evaluate", str(out), "--attacks", "fgsm", "--images", "2"]) == 0
    text = capsys.readouterr().out
    assert "not attacked: 0.999: the gradient of the loss in the images is zero everywhere" in text
    (kept,) = out.glob("evaluation-*/attacks.csv")
    assert {row["model"] for row in rows(kept)} == {"dense", "0.3"}
    assert {finding.wished for finding in read_findings(out, read_records(out)).robustness} == {None, "0.3"}


def test_a_run_is_found_from_anywhere_and_images_where_they_are_now(study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(study / "prune-dap")
    assert main(["evaluate", ".", "--interpret", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["interpretation"]["overlaps"]
    assert main(["evaluate", ".", "--sparsity", "0.50", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["models"]) == ["dense", "0.5"]


def test_the_same_evaluation_is_one_however_the_way_to_the_run_is_spelt(study, tmp_path, monkeypatch, capsys):
    prune_dense(PruneSpec(str(study / "dense"), "random", (0.3,)), tmp_path / "run")
    for folder, way in ((tmp_path, "run"), (tmp_path / "run", "."), (tmp_path / "run", str(tmp_path / "run"))):
        monkeypatch.chdir(folder)
        assert main(["evaluate", way, "--attacks", "fgsm", "--images", "2", "--json"]) == 0
    (place,) = (tmp_path / "run").glob("evaluation-*")
    assert len(read_metrics(place)) == 2 * 5  # of two models at five severities, none was attacked twice


def test_a_model_that_is_broken(study, tmp_path, capsys):
    model, _, card = load_dense(study / "dense")
    save_classifier(model.half(), tmp_path / "half.safetensors", card)
    next(model.parameters()).data.fill_(torch.nan)
    save_classifier(model, tmp_path / "nan.safetensors", card)
    assert main(["evaluate", str(tmp_path / "nan.safetensors")]) == 1
    assert "model, on outline: the model gives logits that are not finite" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "half.safetensors")]) == 0
    assert main(["evaluate", str(tmp_path / "half.safetensors"), "--sparsity", "0.5"]) == 1
    assert "holds one model: sparsities are for the folder of a pruning" in capsys.readouterr().err


def test_a_classifier_in_a_file(study, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    assert main(["export", str(study / "prune-dap"), "--out", str(file)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(file), "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["models"]["model"]
    kept = json.loads((study / "prune-dap" / "result.json").read_text())["sparse"]["0.5"]
    assert model["targets"]["plain"]["all"]["accuracy"] == pytest.approx(kept["targets"]["plain"]["all"])
    for domain, accuracy in kept["validation"].items():
        assert model["sources"][domain]["held out"]["accuracy"] == pytest.approx(accuracy)


@pytest.mark.filterwarnings("ignore:.*cannot be read and are left out")
def test_damaged_images_that_were_skipped_are_skipped_again(tmp_path, monkeypatch, capsys):
    images = shutil.copytree(small_suite(), tmp_path / "pets")
    next(images.glob("*/*/*.png")).write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    train = "train pets --targets plain --pixels 16 --backbone small_resnet --weights null --train.freeze-norms false"
    train += " --train.steps 2 --train.batch-size 4 --on-corrupt skip --out dense"
    assert main(train.split()) == 0
    assert main(["evaluate", "dense/model.safetensors", "--json"]) == 0
    prune = "prune small_resnet --weights dense/model.safetensors --suite pets --pixels 16 --method magnitude --out run"
    assert main(prune.split()) == 1
    assert "1 of 80 images of pets cannot be read" in capsys.readouterr().err
    assert main([*prune.split(), "--on-corrupt", "skip"]) == 0
    assert main(["prune", "dense", "--method", "magnitude", "--on-corrupt", "skip", "--out", "other"]) == 1
    assert "are for a model of your own: give its images with --suite" in capsys.readouterr().err


def test_interpretation_of_a_method_that_learns_no_masks(study, tmp_path):
    result = evaluate_run(EvaluateSpec(str(study / "magnitude"), interpret=True), tmp_path)
    found = result["interpretation"]
    assert "logits" not in found
    assert found["by_sparsity"]["0.5"]["against_magnitude"]["small_but_kept"] == 0
    assert found["pictures"] == ["image", "dense", "0.5"]


@pytest.mark.parametrize("method", ["magnitude", "dap"])
def test_interpretation_of_whole_channels(method, study, tmp_path, capsys):
    config = PruneConfig(steps=8, batch_size=8)
    spec = PruneSpec(str(study / "dense"), method, (0.3,), allocation="flops", prune=config)
    prune_dense(spec, tmp_path / "channels")
    assert main(["evaluate", str(tmp_path / "channels"), "--interpret"]) == 0
    (place,) = (tmp_path / "channels").glob("evaluation-*")
    found = json.loads((place / "result.json").read_text())["interpretation"]
    assert "logits" not in found  # one for a channel is not one for a weight
    layers = {row["layer"]: row["sparsity"] for row in found["by_sparsity"]["0.3"]["layers"]}
    assert all(name.endswith("weight") and "bn" not in name for name in layers)
    assert 0 < max(layers.values()) < 1


def test_a_damaged_run_beside_it_does_not_hide_an_evaluation(study, tmp_path, capsys):
    shutil.copytree(study, tmp_path / "runs")
    spoilt = tmp_path / "runs" / "magnitude" / "result.json"
    spoilt.write_text("{}")
    assert main(["evaluate", str(tmp_path / "runs" / "prune-dap"), "--interpret"]) == 0
    shown = capsys.readouterr()
    assert f"dap: masks are not compared with those of other runs: {spoilt} is damaged" in shown.err
    assert "layers.csv" in shown.out


def test_what_is_not_asked_for_plays_no_part_in_the_id():
    plain = EvaluateSpec("run")
    assert identity(plain) == identity(replace(plain, restarts=3, seed=1, images=5, root="elsewhere"))
    attacked = replace(plain, attacks=("pgd",))
    for other in (replace(attacked, restarts=3), replace(attacked, seed=1), replace(attacked, images=5), plain):
        assert identity(other) != identity(attacked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attacks", "magic"], "evaluate.attacks[0] is 'magic'; choose one of fgsm, pgd, auto"),
        (["--attacks", "pgd", "--images", "0"], "images is 0; it must be at least 1"),
        (["--attacks", "pgd", "--restarts", "2", "--random_start", "false"], "2 restarts from the same place are one"),
    ],
)
def test_what_is_wrong_is_named(arguments, message, study, tmp_path, capsys):
    assert main(["evaluate", str(study / "prune-dap"), *arguments, "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()  # and the next question can have it


def test_images_of_a_side(study):
    from dap.runs.evaluating import _domains
    from dap.runs.subjects import open_subjects

    sources = open_subjects(study / "dense").sources
    assert {name: len(found) for name, found in _domains(sources, 7, per_side=True).items()} == {
        "outline": 3, "rotated": 3, "textured": 3, "plain": 7
    }  # fmt: skip
    one = EvaluateSpec("run", attacks=("pgd",), images=7)
    assert identity(one) != identity(replace(one, per_side=True))
    assert identity(EvaluateSpec("run")) == identity(EvaluateSpec("run", per_side=True))
