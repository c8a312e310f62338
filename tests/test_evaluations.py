"""Evaluations of real runs with everything that can be asked for."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dap.cli import main
from dap.config import PruneConfig, TrainConfig
from dap.runs import EvaluateSpec, PruneSpec, TrainSpec, evaluate_run, prune_dense, train_dense
from dap.specs import identity

DENSE = TrainSpec(
    "digits", ("plain",), backbone="small_resnet", weights=None, train=TrainConfig(60, 2e-3, freeze_norms=False)
)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    train_dense(DENSE, folder / "dense")
    for name, method in {"prune-dap": "dap", "prune-magnitude": "magnitude"}.items():
        config = PruneConfig(steps=20, batch_size=8, target_sparsity=0.9)
        prune_dense(PruneSpec(str(folder / "dense"), method, (0.5,), prune=config), folder / name)
    return folder


def rows(file: Path) -> list[dict[str, str]]:
    with open(file) as stream:
        return list(csv.DictReader(stream))


def test_everything_at_once(study, tmp_path, capsys):
    pytest.importorskip("imagecorruptions", reason="needs imagecorruptions-imaug: pip install 'dap[robustness]'")
    out = tmp_path / "out"
    arguments = ["evaluate", str(study / "prune-dap"), "--attacks", "fgsm,pgd", "--corruptions", "--images", "3"]
    assert main([*arguments, "--interpret", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["models"]) == ["dense", "0.5"]
    for name in found["files"]:
        assert (out / name).stat().st_size > 0
    assert {"attacks.svg", "corruptions.png", "logits.svg", "layers.csv", "overlaps.csv"} <= set(found["files"])
    attacked = rows(out / "attacks.csv")
    assert len(attacked) == 2 * 2 * 5 * 4  # models, attacks, severities, domains
    assert {row["unseen"] for row in attacked if row["domain"] == "plain"} == {"True"}
    assert all(float(row["accuracy"]) <= float(row["clean"]) and row["images"] == "3" for row in attacked)
    assert len(rows(out / "corruptions.csv")) == 2 * 4 * 75
    for model in found["models"].values():
        assert set(model["corruptions"]) == {"plain", "outline", "rotated", "textured"}
    assert found["models"]["dense"]["corruptions"]["plain"]["relative_error"] == pytest.approx(1.0)
    (overlap,) = rows(out / "overlaps.csv")
    assert (overlap["other"], overlap["method"]) == ("prune-magnitude", "magnitude")
    assert float(overlap["overlap"]) > float(overlap["by_chance"])
    with Image.open(out / "activation_maps.png") as picture:
        assert picture.size == (3 * 32, 4 * 4 * 32)
    kept = json.loads((study / "prune-dap" / "result.json").read_text())["sparse"]["0.5"]
    assert found["models"]["0.5"]["targets"]["plain"]["all"]["accuracy"] == pytest.approx(
        kept["targets"]["plain"]["all"]
    )
    assert main([*arguments, "--interpret", "--out", str(out)]) == 0  # it is there
    assert main([*arguments, "--out", str(out)]) == 1  # another question


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


def test_interpretation_of_a_method_that_learns_no_masks(study, tmp_path):
    result = evaluate_run(EvaluateSpec(str(study / "prune-magnitude"), interpret=True), tmp_path)
    found = result["interpretation"]
    assert "logits" not in found
    assert found["by_sparsity"]["0.5"]["against_magnitude"]["small_but_kept"] == 0
    assert found["pictures"] == ["image", "dense", "0.5"]


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
    ],
)
def test_what_is_wrong_is_named(arguments, message, study, tmp_path, capsys):
    assert main(["evaluate", str(study / "prune-dap"), *arguments, "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
