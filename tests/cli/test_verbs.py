"""Every verb through the installed command, on tiny data: the way a user goes. Variants are called in this process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dap.cli import VERBS, main
from dap.data import load_suite
from dap.models import load_classifier, load_sparse, load_weights, small_resnet
from dap.runs import load_pruned
from data.small_suites import make_folder
from small_studies import write_as_before

COMMAND = Path(sys.executable).with_name("dap")
PRUNE = ["prune", "dense", "--method", "magnitude", "--sparsities", "0.5,0.8", "--out", "sparse"]
STUDY = """
name: tiny
train: {suite: pets, target: [day, night], pixels: 16, backbone: small_resnet, weights: null,
        train: {steps: 3, batch_size: 4, freeze_norms: false}}
prune: {method: magnitude, sparsities: [0.5, 0.8]}
evaluate:
"""


def dap(folder: Path, *arguments: str, code: int = 0) -> list[str]:
    """The lines that the command prints."""
    environment = {**os.environ, "DAP_CACHE": str(folder / "cache")}
    done = subprocess.run([COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


def train(out: str, *more: str) -> list[str]:
    network = ["--backbone", "small_resnet", "--weights", "null", "--train.freeze-norms", "false", "--pixels", "16"]
    return ["train", "pets", "--targets", "night", "--train.steps", "4", "--out", out, *network, *more]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder of images, a dense training and a pruning."""
    folder = tmp_path_factory.mktemp("home")
    make_folder(folder / "pets", {domain: {"cat": 10, "dog": 10} for domain in ("day", "dusk", "night")})
    (folder / "study.yaml").write_text(STUDY)
    assert dap(folder, *train("dense", "--tensorboard"))[-1] == "saved in dense"
    assert dap(folder, *PRUNE)[-1] == "Magnitude, saved in sparse"
    return folder


@pytest.fixture
def home(made, monkeypatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setenv("DAP_CACHE", "cache")
    return made


@pytest.fixture
def here(capsys):
    """The same command in this process: what it prints."""

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(arguments) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    return call


def test_train(home, here):
    assert list(Path("dense", "tensorboard").glob("events.out.tfevents.*"))
    assert json.loads(here(*train("dense", "--json")))["steps"] == 4  # it is done
    lines = here(*train("nothing", "--dry-run")).splitlines()
    assert [line.split()[0] for line in lines] == ["time", "memory", "disk", "nothing"]
    found = json.loads(here(*train("nothing", "--dry-run", "--json")))
    assert found["total_seconds"] > 0
    assert found["disk"] > 4 * 390_000  # at least the weights
    assert not Path("nothing").exists()


def test_prune(home, here):
    lines = here(*PRUNE).splitlines()
    assert [line[:14].strip() for line in lines] == ["dense", "sparsity 50.0%", "sparsity 80.0%", "Magnitude, sav"]
    assert here("prune", "dense", "--dry-run", "--out", "nothing").startswith("time    about")
    wrong = here("prune", "--model", "no.such:thing", "--suite", "pets", "--out", "nothing", code=1)
    assert wrong == "dap: there is no no.such:thing: No module named 'no'\n"
    assert "give its images with --suite" in here("prune", "no.such:thing", "--out", "nothing", code=1)
    assert not Path("nothing").exists()


def test_evaluate(home, here):
    lines = dap(home, "evaluate", "sparse")
    assert [line for line in lines if line[0] != " "] == ["dense model", "sparsity 0.5", "sparsity 0.8"]
    models = json.loads(here("evaluate", "sparse", "--sparsity", "0.8", "--json"))["models"]
    kept = json.loads(Path("sparse", "result.json").read_text())["sparse"]["0.8"]
    assert models["0.8"]["targets"]["night"]["80 %"]["accuracy"] == kept["targets"]["night"]["80 %"]
    here("evaluate", "sparse/", "--out", "numbers")
    assert json.loads(Path("numbers", "result.json").read_text())["models"]["0.8"] == models["0.8"]
    kept = Path("sparse", "result.json").read_text()
    write_as_before(Path("sparse", "result.json"), {**json.loads(kept), "spec": "in other words"})
    here("evaluate", "sparse", "--out", "numbers")
    write_as_before(Path("sparse", "result.json"), {**json.loads(kept), "sparse": {}})  # another run
    assert "is about a run that was in sparse before" in here("evaluate", "sparse", "--out", "numbers", code=1)
    Path("sparse", "result.json").write_text(kept)
    assert here("evaluate", "sparse", "--dry-run").startswith("time    about")
    wrong = here("evaluate", "sparse", "--sparsity", "0.7", code=1)
    assert wrong == "dap: sparse has no model 0.7; it has 0.5, 0.8\n"


def test_export(home, here):
    dap(home, "export", "sparse", "--sparsity", "0.8", "--out", "model.safetensors")
    tensors, (model, masks, _) = safetensors.torch.load_file("model.safetensors"), load_pruned("sparse", "0.8")
    assert all(tensor.equal(tensors[name]) for name, tensor in model.state_dict().items())
    zeros = sum(int((tensor == 0).sum()) for tensor in tensors.values())
    assert zeros >= masks.total - masks.kept
    found = json.loads(here("export", "sparse", "--sparsity", "0.8", "--out", "model.safetensors", "--json"))
    assert found["bytes"] == Path("model.safetensors").stat().st_size
    assert "choose one with --sparsity 0.5, 0.8" in here("export", "sparse", "--out", "x.safetensors", code=1)
    here("export", "dense", "--out", "x.safetensors")
    assert safetensors.torch.load_file("x.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_export_without_the_zeros(home, here, dtype):
    sizes = {}
    for kind in ("dense", "safetensors"):
        options = ["--sparsity", "0.8", "--format", kind, "--dtype", dtype, "--out", f"{kind}.safetensors"]
        sizes[kind] = json.loads(here("export", "sparse", *options, "--json"))["bytes"]
    assert sizes["safetensors"] < sizes["dense"] / 2
    whole, found = safetensors.torch.load_file("dense.safetensors"), load_sparse("safetensors.safetensors")
    assert {name: tensor.dtype for name, tensor in found.items()} == {name: one.dtype for name, one in whole.items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
    model, card = load_classifier("safetensors.safetensors")
    assert card.class_names == ("cat", "dog")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in whole.items())
    assert load_weights(small_resnet(2), "safetensors.safetensors").fresh == ()


def test_predict_takes_what_export_writes(home, here):
    dap(home, "export", "sparse", "--sparsity", "0.8", "--out", "model.onnx")
    lines = [json.loads(line) for line in dap(home, "predict", "model.onnx", "pets/night", "pets/day/cat", "--json")]
    assert len(lines) == 30
    model, _, card = load_pruned("sparse", 0.8)
    suite = load_suite("pets", pixels=16)
    for domain, names in (("night", lines[:20]), ("day", lines[20:])):
        images = suite.domains[domain]
        chances = model(torch.cat([images[at][0][None] for at in range(len(names))])).softmax(1)
        for name, row, line in zip(images.names, chances.tolist(), names, strict=False):
            assert line["image"] == f"pets/{name}"
            assert list(line["probabilities"].values()) == pytest.approx(row, abs=1e-5)
            assert line["class"] == card.class_names[row.index(max(row))]
    assert "pets/day/cat/" in here("predict", "model.onnx", "pets/day/cat").splitlines()[0]
    Path("broken.jpg").write_bytes(b"no image")
    assert "cannot read broken.jpg" in here("predict", "model.onnx", "broken.jpg", code=1)
    assert "there is no nowhere" in here("predict", "model.onnx", "nowhere", code=1)
    Path("damaged.onnx").write_bytes(Path("model.onnx").read_bytes()[:1000])
    assert "damaged.onnx is damaged" in here("predict", "damaged.onnx", "pets", code=1)
    assert "leave --dtype out" in here(
        "export", "sparse", "--sparsity", "0.8", "--out", "x.onnx", "--dtype", "float16", code=1
    )


def test_a_program_runs_without_dap(home, here):
    here("export", "sparse", "--sparsity", "0.8", "--out", "model.pt2")
    code = """
import sys, torch
program = torch.export.load("model.pt2").module()
print(program(torch.zeros(3, 3, 16, 16)).shape[0], "dap" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]


def test_study(home, here):
    assert here("study", "run", "study.yaml", "--dry-run").startswith("8 runs are left to do")
    assert not Path("runs").exists()
    wrong = here("study", "run", "study.yaml", "--gpus", "1", code=1)
    assert wrong == "dap: address and gpus are of a ray cluster: give --engine ray, too\n"
    assert dap(home, "study", "status", "study.yaml", code=1) == ["tiny: 8 runs, 8 waiting"]
    assert dap(home, "study", "run", "study.yaml", "--workers", "1")[-1] == "8 of 8 runs are done, in runs/tiny"
    assert here("study", "status", "study.yaml") == "tiny: 8 runs, 8 done\n"
    assert dap(home, "study", "retry", "study.yaml")[-1] == "8 of 8 runs are done, in runs/tiny"


def test_report(home, here):
    if not Path("runs").exists():
        here("study", "run", "study.yaml", "--workers", "1")
    lines = dap(home, "report", "runs/tiny")
    assert lines[3] == "| method | dense | 50 % | 80 % |"
    assert [line.split(" | ")[0] for line in lines[5:7]] == ["| Dense", "| Magnitude"]
    assert lines[-1] == "the page is runs/tiny/report.html"
    assert "<title>tiny</title>" in Path("runs/tiny/report.html").read_text()
    assert Path("runs/tiny/studies/study.yaml").read_bytes() == Path("study.yaml").read_bytes()
    found = json.loads(here("report", "study.yaml", "--out", "page.html", "--watch", "--json"))  # all is done
    row = next(row for row in found["tables"][0]["rows"] if row["series"] == "Magnitude")
    assert row["cells"][-1]["seeds"] == 1
    assert len(found["records"]) == 6
    assert found["page"] == "page.html"
    kept = here("report", "runs/tiny/studies/study.yaml", "--out", "page.html", "--json")
    assert len(json.loads(kept)["records"]) == 6
    text = here("report", "runs/tiny", "--files", "files", "--with-paper")
    assert "tables and figures are in files" in text
    assert Path("files/pruning.tex").exists()
    assert "Published numbers" in Path("runs/tiny/report.html").read_text()


def test_data_check(home):
    assert dap(home, "data", "check", "pets")[-1] == "pets is whole"


def test_completion(home, here, tmp_path):
    """The script, in a real shell."""
    (tmp_path / "dap.bash").write_text("\n".join(dap(home, "completion", "bash")))

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        script = f"source dap.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_dap"
        script += "; echo ${COMPREPLY[@]}"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout.split()

    assert complete("dap", "stu") == ["study"]
    assert complete("dap", "study", "r") == ["run", "retry"]
    assert complete("dap", "train", "digits", "--train.f") == ["--train.freeze-norms"]
    assert complete("dap", "train", "digits", "--on-corrupt", "") == ["fail", "skip"]
    assert complete("dap", "report", "dap.b") == ["dap.bash"]
    for shell in ("zsh", "tcsh"):
        assert "evaluate" in here("completion", shell)


def test_a_file_of_options(home, here, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(train("again", "--print-config"))
    text = capsys.readouterr().out
    assert "freeze_norms: false" in text
    (tmp_path / "values.yaml").write_text(text)
    found = json.loads(here("train", "--config", str(tmp_path / "values.yaml"), "--json", "--train.steps", "2"))
    assert found["steps"] == 2
    assert found["spec"]["pixels"] == 16


def test_a_run_belongs_to_its_precision(home, here):
    assert "holds a run with" in here(*train("dense", "--precision", "bf16-mixed"), code=1)


def test_version(here):
    assert here("--version").startswith("dap 0.")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_every_verb_a_test(verb, capsys):
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    assert f"Example: dap {verb}" in capsys.readouterr().out
    assert any(name.startswith(f"test_{verb.split()[0]}") for name in globals())
