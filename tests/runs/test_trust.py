"""Opening a run imports no code and asks no hub, unless this command names it or the user allows it."""

import json
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from conftest import make_classifier
from dap.cli import main
from dap.data import load_suite
from dap.errors import DapError
from dap.export.onnx import export_onnx, open_onnx
from dap.masks import Masks
from dap.models import ModelCard, create_classifier, load_classifier, load_sparse, save_classifier, save_sparse
from dap.models.weights import read_weights
from dap.runs import EvaluateSpec, PruneSpec, evaluate_run, load_pruned, prune_dense
from dap.runs.rehearsal import rehearse
from dap.runs.subjects import open_subjects
from dap.runtime.checkpoints import load_state, save_state
from dap.runtime.offline import is_local_only, local_only
from dap.specs import FORMAT, ModelSpec, identity
from dap.specs.run_files import write_json
from dap.studies import read_study
from small_prunings import dense_training, spec_of
from small_studies import small_suite

OWN = """
from pathlib import Path
from torch import nn

Path("imported").write_text("yes")

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.Flatten(), nn.Linear(64, 2))
"""


@pytest.fixture
def pruned(tmp_path, monkeypatch):
    """A pruning of a model that code makes; the process has not imported this code."""
    (tmp_path / "trusted_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    torch.manual_seed(0)
    weights = {"0.weight": torch.randn(4, 3, 3, 3), "0.bias": torch.zeros(4)}
    safetensors.torch.save_file(weights | {"2.weight": torch.randn(2, 64), "2.bias": torch.zeros(2)}, "w.safetensors")
    dense = ModelSpec("trusted_nets:build", str(small_suite()), ("plain",), pixels=16, weights="w.safetensors")
    prune_dense(PruneSpec(dense, "magnitude", (0.5,)), "run")
    forget()
    yield dense
    forget()


def forget() -> None:
    Path("imported").unlink(missing_ok=True)
    sys.modules.pop("trusted_nets", None)


OPENINGS = {
    "load": lambda trust: load_pruned("run", 0.5, trust_code=trust),
    "subjects": lambda trust: open_subjects(Path("run"), trust_code=trust),
    "evaluation": lambda trust: evaluate_run(EvaluateSpec("run"), "evaluated", trust_code=trust),
    "rehearsal": lambda trust: rehearse(EvaluateSpec("run"), trust_code=trust),
    "rehearsed pruning": lambda trust: rehearse(PruneSpec("run", "magnitude", (0.5,)), trust_code=trust),
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_no_opening_imports_code_that_was_not_named(opening, pruned):
    with pytest.raises(DapError, match=r"made by code, trusted_nets:build, .* --trust-code") as refused:
        OPENINGS[opening](False)
    assert "\n" not in str(refused.value)
    assert not Path("imported").exists()
    OPENINGS[opening](True)
    assert Path("imported").exists()


def test_commands_ask_for_the_flag(pruned, capsys):
    commands = [
        ["evaluate", "run"],
        ["evaluate", "run", "--dry-run"],
        ["export", "run", "--out", "model.safetensors"],
        ["prune", "run", "--method", "magnitude", "--out", "again", "--dry-run"],
    ]
    for command in commands:
        assert main(command) == 1
        assert "trusted_nets:build" in (said := capsys.readouterr().err)
        assert "--trust-code" in said
        assert len(said.splitlines()) == 1
        assert not Path("imported").exists()
    assert main(["report", "run", "--json"]) == 0  # it opens no model
    assert not Path("imported").exists()
    for command in commands[:3]:
        assert main([*command, "--trust-code"]) == 0
        assert Path("imported").exists()
        forget()
    named = ["prune", "trusted_nets:build", "--suite", pruned.suite, "--targets", "plain", "--pixels", "16"]
    rest = ["--weights", "w.safetensors", "--method", "magnitude", "--sparsities", "0.5", "--out", "named"]
    assert main([*named, *rest]) == 0  # its user named it


def test_a_study_names_the_code_of_its_runs_and_no_other(pruned, tmp_path):
    text = json.dumps({"model": {**asdict(pruned), "train": {}}, "prune": {"method": "magnitude", "sparsities": [0.5]}})
    (tmp_path / "study.yaml").write_text(text[:-1] + ', "evaluate": {}}')
    study = read_study("study.yaml", "runs")
    pruning, evaluation = sorted(study.runs, key=lambda run: study.runs[run].kind, reverse=True)
    spec, asked = study.runs[pruning], study.runs[evaluation]
    assert isinstance(spec, PruneSpec)
    assert isinstance(asked, EvaluateSpec)
    prune_dense(spec, study.place(pruning))
    forget()
    evaluate_run(asked, study.place(evaluation))
    assert Path("imported").exists()
    forget()
    other = replace(spec, dense=replace(pruned, model="other_nets:build")).resolved()
    file = study.place(pruning) / "spec.json"
    file.write_text(json.dumps({"format": FORMAT, "kind": "prune", "id": identity(other), "spec": asdict(other)}))
    with pytest.raises(DapError, match="was written with another one"):
        evaluate_run(asked, study.folder / "evaluate-other")
    (study.place(pruning) / "result.json").unlink()
    write_json(file, {"format": FORMAT, "kind": "prune", "id": identity(other), "spec": asdict(other)})
    with pytest.raises(DapError, match="it is the specification of prune-"):
        evaluate_run(asked, study.folder / "evaluate-other")
    assert not Path("imported").exists()


@pytest.fixture
def network(monkeypatch):
    """Whoever tries to reach the network; nobody does."""
    tried: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        tried.append(args)
        raise OSError("a test has no network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    return tried


def test_no_local_file_speaks_to_a_hub(network, tmp_path):
    card, model = ModelCard(("a", "b", "c"), 16, notes={"suite": "x"}), create_classifier("resnet18", 3)
    save_classifier(model, tmp_path / "whole", card)
    save_classifier(model, tmp_path / "sparse", card, sparse=True)
    save_sparse(model.state_dict(), tmp_path / "tensors")
    Masks({"weight": torch.ones(2, 2, dtype=torch.bool)}).save(tmp_path / "masks")
    save_state(tmp_path / "state", {"a": torch.zeros(2)}, {"b": 1})
    torch.save(model.state_dict(), tmp_path / "theirs.pth")
    export_onnx(make_classifier().eval(), tmp_path / "a.onnx", card, torch.rand(1, 3, 16, 16))
    load_classifier(tmp_path / "whole")
    load_classifier(tmp_path / "sparse")
    load_sparse(tmp_path / "tensors")
    Masks.load(tmp_path / "masks")
    load_state(tmp_path / "state")
    read_weights(tmp_path / "theirs.pth")
    create_classifier("resnet18", 3, tmp_path / "theirs.pth")
    open_onnx(tmp_path / "a.onnx")
    dense = dense_training(tmp_path / "dense")
    prune_dense(spec_of(dense, "magnitude"), tmp_path / "run")
    open_subjects(tmp_path / "run")
    open_subjects(dense)
    open_subjects(dense / "model.safetensors")
    assert network == []


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18.a1_in1k", "local-dir:/somewhere", "hf_hub:me/net"])
def test_no_name_of_a_backbone_leads_to_a_hub(name, network):
    with pytest.raises(DapError, match="no backbone is called"):
        create_classifier(name, 3)
    assert network == []


def test_what_a_run_names_on_a_hub_is_not_fetched(network, tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="needs datasets: pip install 'dap[hub]'")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between attempts to connect
    with local_only():
        with pytest.raises(DapError, match=r"dap data check hf:me/none, or allow the network with --trust-code"):
            load_suite("hf:me/none")
        for name in ("resnet18", "gcvit_tiny"):  # of the hub, and of a plain address
            with pytest.raises(DapError, match=f"weights of {name} .*--trust-code"):
                create_classifier(name, 3, "pretrained")
        assert is_local_only()
    assert network == []
    assert not is_local_only()
    with pytest.raises(DapError, match="check its name and the connection"):
        load_suite("hf:me/none")
    assert network != []  # this command named it
