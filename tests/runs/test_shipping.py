"""`dap export` of whole channels and with wishes, through the command, on a small suite."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dap.cli import main
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.export import open_onnx
from dap.export.int8 import Runtime
from dap.masks import Masks
from dap.models import small_resnet
from dap.runs import load_pruned
from dap.runs.shipping import _validation, open_ladder
from dap.runs.sources import Sources
from dap.runs.subjects import open_subjects
from dap.structure import remove_channels
from data.small_suites import make_folder
from small_studies import write_as_before

TRAIN = "train pets --targets night --train.steps 4 --train.freeze-norms false --backbone small_resnet --weights null"
PRUNE = "prune dense --sparsities 0.3,0.6 --prune.steps 8 --prune.batch-size 4 --prune.target-sparsity 0.7"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A dense training, and prunings of weights, of channels, and of a pattern."""
    folder = tmp_path_factory.mktemp("home")
    make_folder(folder / "pets", {domain: {"cat": 10, "dog": 10} for domain in ("day", "dusk", "night")})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TRAIN.split(), "--pixels", "16", "--out", "dense"]) == 0
        assert main([*PRUNE.split(), "--out", "weights"]) == 0
        assert main([*PRUNE.split(), "--allocation", "flops", "--out", "channels"]) == 0
        tuned = ["--method", "magnitude", "--allocation", "flops", "--finetuned", "true", "--finetune.steps", "2"]
        assert main(["prune", "dense", "--sparsities", "0.3,0.6", *tuned, "--out", "tuned"]) == 0
        assert main(["prune", "dense", "--method", "magnitude", "--allocation", "2:4", "--out", "pattern"]) == 0
    return folder


@pytest.fixture
def export(made, monkeypatch, capsys):
    monkeypatch.chdir(made)

    def call(*arguments: str, code: int = 0) -> dict:
        capsys.readouterr()
        assert main(["export", *arguments, "--json"]) == code
        found = capsys.readouterr()
        return {"error": found.err} if code else json.loads(found.out)

    return call


def test_channels_are_gone_from_files_with_a_graph_and_zeros_in_files_of_tensors(export):
    found = export("channels", "--sparsity", "0.6", "--out", "model.onnx")
    model, masks, _ = load_pruned("channels", 0.6)
    small = remove_channels(model, masks)
    assert found["parameters"] == sum(weight.numel() for weight in small.parameters())
    costs = found["costs"]
    assert costs["file"]["flops"] <= 0.4 * costs["dense"]["flops"]
    assert costs["file"]["parameters"] == found["parameters"] < costs["dense"]["parameters"]
    assert all(cost["torch_seconds"] > 0 and cost["onnx_seconds"] > 0 for cost in costs.values())
    program = export("channels", "--sparsity", "0.6", "--out", "model.pt2")
    assert program["costs"]["file"]["onnx_seconds"] is None
    assert program["difference"] < 1e-4
    export("channels", "--sparsity", "0.6", "--out", "model.safetensors")
    own = small_resnet(2)
    own.load_state_dict(safetensors.torch.load_file("model.safetensors"))
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = own.eval()(images)
    code = """
import sys, numpy, onnxruntime, torch
images = numpy.load("images.npy")
session = onnxruntime.InferenceSession("model.onnx")
numpy.save("onnx.npy", session.run(None, {"images": images})[0])
numpy.save("torch.npy", torch.export.load("model.pt2").module()(torch.from_numpy(images)).detach().numpy())
print("dap" in sys.modules)
"""
    np.save("images.npy", images.numpy())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    for name in ("onnx", "torch"):
        np.testing.assert_allclose(np.load(f"{name}.npy"), expected, atol=1e-4)


def test_any_sparsity_up_to_the_highest_and_what_it_costs(export):
    found = export("weights", "--target-sparsity", "0.45", "--out", "any.safetensors")
    assert found["cut"] == {"of": "weights", "share": 0.45}
    weights = [tensor for tensor in safetensors.torch.load_file("any.safetensors").values() if tensor.ndim > 1]
    zeros = sum(int((tensor == 0).sum()) for tensor in weights)
    assert zeros == pytest.approx(0.45 * sum(tensor.numel() for tensor in weights), abs=1)
    kept = json.loads(Path("weights", "result.json").read_text())
    mean = {name: sum(row["validation"].values()) / 2 for name, row in (("dense", kept["dense"]),)}
    assert found["validation"]["dense"] == pytest.approx(mean["dense"])
    same = export("weights", "--target-sparsity", "0.6", "--out", "any.safetensors")
    expected = kept["sparse"]["0.6"]["validation"]
    assert same["validation"]["file"] == pytest.approx(sum(expected.values()) / 2)
    wrong = export("weights", "--target-sparsity", "0.9", "--out", "none.safetensors", code=1)["error"]
    assert wrong == "dap: a share of 90.0% is out of reach, the sparsest model cuts 60.0%: prune to a higher sparsity\n"
    assert not Path("none.safetensors").exists()


def test_shares_are_what_is_cut(made, monkeypatch):
    monkeypatch.chdir(made)
    prune = "prune dense --method magnitude --allocation channels --sparsities 0.3,0.6 --out filters"
    assert main(prune.split()) == 0
    ladder, subjects = open_ladder(Path("filters"))
    real = {masks.sparsity for masks in subjects.masks.values()}
    assert real == ladder.made.keys() != {0.3, 0.6}  # the head stays whole
    between = ladder.at(fmean(real)).masks
    assert between is not None
    assert all(bool((between[name] >= mask).all()) for name, mask in ladder.made[max(real)][1].items())


def test_the_least_is_cut_for_a_size(export):
    options = ["--format", "safetensors", "--out", "small.safetensors"]
    whole = export("weights", "--sparsity", "0.3", *options)["bytes"]
    limit = int(0.8 * whole)
    found = export("weights", "--max-size", f"{limit / 1000}KB", *options)
    assert 0.3 < found["cut"]["share"] < 0.6
    assert 0.98 * limit < found["bytes"] == Path("small.safetensors").stat().st_size <= limit
    half = export("weights", "--max-size", f"{limit / 1000}KB", "--dtype", "float16", *options)
    assert half["cut"]["share"] == 0  # half the precision is enough
    wrong = export("weights", "--max-size", "100KB", "--out", "small.onnx", code=1)["error"]
    assert "choose --format safetensors for a size" in wrong
    wrong = export("channels", "--max-size", "100KB", "--out", "small.safetensors", code=1)["error"]
    assert "choose --format safetensors for a size" in wrong  # zeros stay in place
    wrong = export("weights", "--sparsity", "0.6", "--threads", "0", *options, code=1)["error"]
    assert wrong == "dap: threads is 0; it must be at least 1\n"
    wrong = export("weights", "--max-size", "1KB", *options, code=1)["error"]
    assert wrong == "dap: no model meets the wish, not even the one that cuts 60.0%: prune further\n"


@pytest.mark.slow
def test_the_least_is_cut_for_a_latency_and_people_read_a_table(export, capsys):
    assert main(["export", "tuned", "--target-latency", "10x", "--out", "fast.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "0.0% of the FLOPs are cut"  # the dense model is fast enough
    rows = {line[:20].strip(): line[20:].split()[::-1] for line in lines[4:]}
    assert list(rows) == ["parameters", "FLOPs", "PyTorch", "ONNX Runtime", "sources' validation"]
    assert len(set(rows["sources' validation"])) == 1
    wrong = export("weights", "--target-latency", "0.5x", "--out", "none.onnx", code=1)["error"]
    assert "prune with --allocation flops" in wrong
    wrong = export("channels", "--target-latency", "0.5x", "--out", "none.pt2", code=1)["error"]
    assert "name the file model.onnx" in wrong
    assert not Path("none.onnx").exists()


def test_int8_says_what_it_costs(export):
    found = export("tuned", "--sparsity", "0.3", "--int8", "--out", "int8.onnx")
    images, file = open_subjects(Path("tuned")).sources.held_out.values(), Runtime(open_onnx("int8.onnx"))
    model, masks, _ = load_pruned("tuned", 0.3)
    expected = {"float": model, "file": file}
    for name, one in expected.items():
        assert found["validation"][name] == pytest.approx(sum(accuracy(one, data) for data in images) / 2)
    assert found["costs"]["file"]["onnx_seconds"] > 0
    weights = [tensor for tensor in onnx.load("int8.onnx").graph.initializer if len(tensor.dims) > 1]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.INT8}
    small = [parameter for parameter in remove_channels(model, masks).parameters() if parameter.ndim > 1]
    assert sum(math.prod(tensor.dims) for tensor in weights) == sum(parameter.numel() for parameter in small)
    assert "name the file model.onnx" in export("tuned", "--int8", "--out", "int8.pt2", code=1)["error"]


def test_of_weights_that_moved_only_what_was_made_is_there(export):
    found = export("tuned", "--target-sparsity", "0.4", "--out", "tuned.safetensors")
    assert found["cut"]["share"] == 0.6


def test_a_control_ships_what_was_trained_on(export):
    control = ["--method", "control", "--finetune.steps", "2", "--finetune.learning-rate", "0.01"]
    assert main(["prune", "dense", *control, "--out", "control"]) == 0
    export("control", "--out", "control.safetensors")
    found, (trained, _, _) = safetensors.torch.load_file("control.safetensors"), load_pruned("control", "0.0")
    assert all(torch.equal(found[name], tensor) for name, tensor in trained.state_dict().items())
    dense = safetensors.torch.load_file("dense/model.safetensors")
    assert not all(torch.equal(found[name], tensor) for name, tensor in dense.items())


def test_images_that_were_moved_are_found_with_root(export):
    shutil.move("pets", "moved/pets")
    try:
        wrong = export("weights", "--sparsity", "0.6", "--out", "none.safetensors", code=1)["error"]
        assert "of a folder that was moved, its parent as root" in wrong
        export("weights", "--sparsity", "0.6", "--root", "moved", "--out", "again.safetensors")
    finally:
        shutil.move("moved/pets", "pets")


def test_patterns_are_checked(export, made):
    found = export("pattern", "--dtype", "float16", "--out", "pattern.safetensors")
    assert found["pattern"] == "2:4"
    assert (
        found["on a GPU"]
        == "0 of 1 linear layers can run 2:4 on a GPU; network.head.weight: its 2 outputs are no multiple of 16"
    )
    shutil.copytree("pattern", "broken")
    masks = Masks.load("broken/2-of-4/masks.safetensors")
    Masks({name: torch.ones_like(masks[name]) for name in masks}).save("broken/2-of-4/masks.safetensors")
    write_as_before(Path("broken/2-of-4/result.json"))  # digests would notice it first
    for name in ("result.json", "dense.json"):
        write_as_before(Path("broken", name))
    wrong = export("broken", "--out", "none.safetensors", code=1)["error"]
    assert "breaks the pattern 2:4: output 0" in wrong


def test_what_fits_no_run_is_one_line(export):
    wrong = export("weights", "--sparsity", "0.6", "--max-size", "1MB", "--out", "none.onnx", code=1)["error"]
    assert wrong == "dap: choose one of --sparsity, --target-sparsity, --target-latency and --max-size\n"
    assert "choose one with --sparsity 0.3, 0.6" in export("weights", "--out", "none.onnx", code=1)["error"]
    wrong = export("dense", "--target-sparsity", "0.5", "--out", "none.onnx", code=1)["error"]
    assert wrong == "dap: dense is a dense training: prune it first, or leave the sparsity out\n"


def test_errors_about_images_name_the_domain():
    sources = Sources({}, {"photo": TensorDataset(torch.eye(2), torch.tensor([0, 7]))}, {})
    with pytest.raises(DapError, match="domain 'photo': label 7 is out of range"):
        _validation({"file": nn.Identity()}, sources, lambda *_: None)
