"""A pruning of a model that was not trained here: an importable function and a file of weights."""

import importlib
import re
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from dap.cli import main
from dap.config import FinetuneConfig
from dap.errors import DapError
from dap.models import small_resnet
from dap.runs import PruneSpec, load_pruned, prune_dense
from dap.specs import ModelSpec

OWN = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.head, self.other = nn.LSTM(96, 8, batch_first=True), nn.Linear(8, 10), nn.Linear(8, 10)

    def forward(self, images):
        return (self.other if self.training else self.head)(self.rows(images.transpose(1, 2).flatten(2))[0][:, -1])

def nothing():
    return 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a module of the user's, where the command is called."""
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    return importlib.import_module("own_nets").build()


def test_a_users_own_model(own):
    safetensors.torch.save_file(own.state_dict(), "weights.safetensors")
    dense = ModelSpec("own_nets:build", "digits", ("plain",), weights="weights.safetensors")
    spec = PruneSpec(dense, "magnitude", (0.5,), finetune=FinetuneConfig(steps=2))
    result = prune_dense(spec, "run")
    assert list(result["sparse"]["0.5"]["targets"]) == ["plain"]
    sparse, masks, card = load_pruned("run", 0.5, trust_code=True)
    assert card.notes["sources"] == ["outline", "rotated", "textured"]
    assert torch.equal(sparse.get_parameter("3.weight"), own[3].weight * masks["3.weight"])
    prune_dense(replace(spec, finetuned=True), "tuned")
    moved, masks, _ = load_pruned("tuned", 0.5, trust_code=True)
    kept = masks["3.weight"]
    assert moved.get_parameter("3.weight")[~kept].eq(0).all()
    assert not torch.equal(moved.get_parameter("3.weight")[kept], own[3].weight[kept])
    everywhere = replace(spec, dense=replace(dense, targets=()))
    assert prune_dense(everywhere, "everywhere")["sparse"]["0.5"]["targets"] == {}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("rank", ["0", "1"])
def test_warnings_are_lines(own, rank, capsys, monkeypatch):
    """One each, of the first process alone, however often and wherever it is given."""
    monkeypatch.setenv("LOCAL_RANK", rank)
    command = "prune own_nets:Recurrent --suite digits --method magnitude --sparsities 0.3,0.5 --pixels 32 --out run"
    assert main(command.split()) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "arning" in line]
    said = [r"dap: warning: only \d.\d\d% of the model's parameters", r"dap: warning: 50.0% of the maskable weights"]
    assert len(lines) == (2 if rank == "0" else 0)
    assert all(re.match(expected, line) for expected, line in zip(said, lines, strict=rank == "0"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "own_nets:gone"}, "there is no own_nets:gone"),
        ({"model": "gone:build"}, "there is no gone:build: No module named 'gone'"),
        ({"model": "own_nets:nothing"}, "own_nets:nothing gives a int: it must give a torch.nn.Module"),
        ({"weights": "gone.safetensors"}, "no weights at gone.safetensors"),
        ({"model": "resnet18"}, "resnet18 needs weights: give a file, or train it with dap train"),
        ({"model": "small_resnet", "weights": "seven.safetensors"}, "have no head for 10 classes: train it"),
        ({"weights": "seven.safetensors"}, "seven.safetensors does not fit the model: Missing key"),
    ],
)
def test_what_is_wrong_with_a_model_is_named(changes, message, own, tmp_path):
    safetensors.torch.save_file(small_resnet(7).network.state_dict(), "seven.safetensors")
    spec = PruneSpec(replace(ModelSpec("own_nets:build", "digits"), **changes), "magnitude", (0.5,))
    with pytest.raises(DapError, match=message):
        prune_dense(spec, "run")
    assert not (tmp_path / "run").exists()
