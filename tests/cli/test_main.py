import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from dap.cli import main
from dap.runs import load_pruned
from dap.runs.dense import load_dense
from dap.specs.run_files import read_result


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for domain in ("art", "photo"):
        (tmp_path / "suite" / domain / "cat").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "suite" / domain / "cat" / "0.png")
    return tmp_path / "suite"


def usage_error(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["data", "check", "--help"], ["train", "--help"], ["prune", "--help"], ["study", "run", "--help"]],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom dap.cli import main\n"
        f"try: code = main({arguments})\nexcept SystemExit as stop: code = stop.code\n"
        "heavy = {'torch', 'numpy', 'PIL', 'datasets'} & set(sys.modules)\nsys.exit(code or ' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: dap" in done.stdout


def test_check_of_a_whole_suite(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(suite)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "suite is whole"
    assert "art                        1 images, 0 unreadable" in out
    assert err == ""


def test_check_of_a_damaged_suite(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (suite / "photo" / "cat" / "0.png").write_bytes(b"")
    assert main(["data", "check", str(suite)]) == 1
    assert "- photo/cat/0.png cannot be read" in capsys.readouterr().out
    assert main(["data", "check", str(suite), "--quick"]) == 0
    assert "1 images, not decoded" in capsys.readouterr().out


def test_json(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (suite / "photo" / "cat" / "0.png").write_bytes(b"")
    assert main(["data", "check", str(suite), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["whole"] is False
    assert found["domains"]["art"]["images"] == 1
    assert list(found["domains"]["photo"]["unreadable"]) == ["photo/cat/0.png"]


def test_names_that_are_no_text(suite: Path) -> None:
    file = os.fsencode(suite / "art" / "cat") + b"/caf\xe9.png"
    with open(file, "wb") as damaged:
        damaged.write(b"no image")
    command = [Path(sys.executable).with_name("dap"), "data", "check", str(suite)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"caf\\udce9.png" in done.stdout


def test_a_folder_that_cannot_be_read(suite: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    real, locked = os.scandir, str(suite / "art" / "cat")

    def scandir(folder: str) -> object:
        if str(folder) == locked:
            raise PermissionError(errno.EACCES, "Permission denied", locked)
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main(["data", "check", str(suite)]) == 1
    assert capsys.readouterr().err == f"dap: cannot read {locked} (Permission denied): check its rights\n"


def test_named_suite_in_a_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "PACS", "--root", str(tmp_path)]) == 1
    assert "DomainBed" in capsys.readouterr().out


def test_user_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "/nothing/here"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dap: '/nothing/here' is no folder and no suite")
    assert err.count("\n") == 1


def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    assert main(["data"]) == 2
    assert usage_error("train", "digits") == 2
    assert usage_error("data", "check") == 2
    assert usage_error("data", "check", "PACS", "--rot", "x") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dap.data.checking.check_suite", interrupted)
    assert main(["data", "check", "PACS"]) == 130
    assert capsys.readouterr().err == "dap: interrupted\n"


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("dap")
    if not command.exists():
        pytest.skip("installed without its command")
    done = subprocess.run([command, "data", "check", "/nothing/here"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def train(*arguments: str) -> list[str]:
    quick = ["--backbone", "small_resnet", "--weights", "null", "--train.freeze_norms", "false"]
    return ["train", *arguments, *quick, "--train.learning_rate", "1e-3", "--train.batch_size", "8"]


def test_train_on_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAP_CACHE", str(tmp_path / "cache"))
    colours = {"cat": (200, 40, 40), "dog": (40, 40, 200)}
    for domain, light in {"day": 40, "dusk": 20, "night": 0}.items():
        for name, colour in colours.items():
            (tmp_path / "pets" / domain / name).mkdir(parents=True)
            for number in range(20):
                picture = Image.new("RGB", (20 + number % 3, 16), tuple(value + light for value in colour))
                picture.save(tmp_path / "pets" / domain / name / f"{number}.jpg")
    out = tmp_path / "run"
    arguments = train(str(tmp_path / "pets"), "--targets", "night", "--out", str(out), "--pixels", "16")
    arguments += ["--objective", "group_dro", "--options.step_size", "0.1", "--train.check_every", "10"]
    (tmp_path / "values.yaml").write_text("train:\n  steps: 12\njson: true\n")
    arguments += ["--config", str(tmp_path / "values.yaml"), "--train.steps", "31"]
    command = Path(sys.executable).with_name("dap")
    done = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 31  # the flag, not the file
    assert list(result["targets"]["night"]) == ["80 %", "20 %", "all"]
    assert result["targets"]["night"]["all"] > 0.9  # red and blue

    model, objective, card = load_dense(out)
    assert card.class_names == ("cat", "dog")
    assert card.notes["sources"] == ["day", "dusk"]
    assert objective.options() == {"step_size": 0.1}
    assert not torch.equal(objective.state_dict()["q"], torch.full((2,), 0.5))
    again = subprocess.run([command, *arguments], capture_output=True, text=True)  # nothing left to do
    assert json.loads(again.stdout) == result
    assert model.recipe is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--targets", "moon"], "digits has no domain 'moon'; it has outline, plain, rotated, textured"),
        (["--targets", "outline,plain,rotated,textured"], "every domain of digits is a target"),
        (["--targets", "plain", "--objective", "luck"], "there is no objective 'luck'; choose one of erm, irm"),
        (["--targets", "plain", "--options.luck", "1"], "objective 'erm' does not take luck; its options: none"),
        (["--targets", "plain", "--train.steps", "0"], "steps is 0; it must be a whole number of at least 1"),
        (["--targets", "plain", "--train.seed", str(2**63)], "it must be a whole number from 0 to 2^63"),
        (["--targets", "plain", "--threads", "-1"], "threads is -1; it must be at least 1"),
        (["--targets", "plain", "--dropout", "1.5"], "dropout is 1.5; it must be at least 0 and below 1"),
        (["--targets", "plain", "--objective", "coral", "--options.weight", "null"], "is None; its default is 1.0"),
        (["--targets", "plain", "--accelerator", "tpu"], "cannot run on accelerator=tpu"),
    ],
)
def test_train_names_what_is_wrong(arguments, message, tmp_path, capsys) -> None:
    assert main(train("digits", "--out", str(tmp_path / "run"), *arguments)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_train_on_two_devices_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = train("digits", "--targets", "rotated,plain", "--out", str(tmp_path), "--train.steps", "4")
    arguments += ["--devices", "2", "--accelerator", "cpu", "--json", "--precision", "bf16-mixed"]
    done = subprocess.run([Path(sys.executable).with_name("dap"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["targets"]) == ["plain", "rotated"]
    assert [row["step"] for row in result["validation"]] == [1, 4]


def test_prune_by_any_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense, out = tmp_path / "dense", tmp_path / "taylor"
    assert main(train("digits", "--targets", "plain", "--out", str(dense), "--train.steps", "3", "--json")) == 0
    capsys.readouterr()
    arguments = ["prune", str(dense), "--method", "taylor", "--sparsities", "0.5,0.8", "--batches", "2"]
    arguments += ["--allocation", "erk", "--finetuned", "true", "--finetune.steps", "2", "--out", str(out)]
    (tmp_path / "values.yaml").write_text("prune:\n  batch_size: 4\n  exclude: [network.head.weight]\n")
    arguments += ["--config", str(tmp_path / "values.yaml")]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:14].strip() for line in lines[:3]] == ["dense", "sparsity 50.0%", "sparsity 80.0%"]
    assert lines[3] == f"Taylor, fine-tuned, saved in {out}"
    assert main([*arguments, "--json"]) == 0  # nothing left to do
    result = json.loads(capsys.readouterr().out)
    assert result == read_result(out)
    assert result["sparse"]["0.8"]["allocation"] == "erk"
    assert result["sparse"]["0.8"]["weights moved"]
    assert main(["evaluate", str(out), "--sparsity", "0.8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["models"]["0.8"]
    for domain, accuracy in result["sparse"]["0.8"]["validation"].items():
        assert found["sources"][domain]["held out"]["accuracy"] == pytest.approx(accuracy)
    assert found["targets"]["plain"]["80 %"]["accuracy"] == pytest.approx(
        result["sparse"]["0.8"]["targets"]["plain"]["80 %"]
    )
    model, masks, _ = load_pruned(out, 0.8)
    assert "network.head.weight" not in masks
    assert model.get_parameter("network.head.weight").ne(0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model.safetensors in"),
        (["--sparsities", "much"], "sparsities is 'much'; give numbers separated by commas, such as 0.5,0.8"),
    ],
)
def test_prune_names_what_is_wrong(arguments, message, tmp_path, capsys) -> None:
    assert main(["prune", str(tmp_path), "--out", str(tmp_path / "out"), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


STUDY = """
name: tiny
train:
  suite: digits
  target: {target}
  backbone: small_resnet
  weights: {weights}
  train: {{steps: 2, batch_size: 4, freeze_norms: false}}
prune:
  method: magnitude
  sparsities: [0.5]
"""


def test_a_study_with_failures(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.format(target="plain", weights="[null, gone.safetensors]"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> str:
        assert main(["study", *arguments]) == code
        return capsys.readouterr().out

    shown = call("run", "study.yaml", "--workers", "1", code=1)
    assert "2 of 4 runs are done, in runs/tiny" in shown
    assert "gone.safetensors" in shown
    states = [row["state"] for row in json.loads(call("status", "study.yaml", "--json", code=1))["runs"]]
    assert states == ["done", "done", "failed", "waiting"]
    again = json.loads(call("run", "study.yaml", "--json", code=1))  # what failed stays failed
    assert list(again["states"].values()) == states
    next(tmp_path.glob("runs/tiny/prune-*/result.json")).unlink()
    assert "seed 0 (2 of 4" in call("run", "study.yaml", "--workers", "1", code=1)  # nor does it count as done
    assert call("retry", "study.yaml", "--dry-run", "--shard", "1/2").startswith("0 runs are left to do")
    (tmp_path / "study.yaml").write_text(STUDY.format(target="[plain, rotated]", weights="null"))
    call("retry", "study.yaml", "--shard", "2/2")
    assert call("status", "study.yaml") == "tiny: 4 runs, 4 done\n"
    assert main(["study", "run", "study.yaml", "--shard", "3/2"]) == 1
    assert capsys.readouterr().err == "dap: shard is '3/2'; give a part and how many there are, as in 2/5\n"


def test_a_study_of_a_domain_that_is_not_there_does_not_begin(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.format(target="[plain, moon]", weights="null"))
    monkeypatch.chdir(tmp_path)
    assert main(["study", "run", "study.yaml"]) == 1
    assert capsys.readouterr().err == "dap: digits has no domain 'moon'; it has outline, plain, rotated, textured\n"
    assert not (tmp_path / "runs").exists()


def test_evaluate_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "no spec.json in" in capsys.readouterr().err
