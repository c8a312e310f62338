"""What a user meets when importing dap."""

import subprocess
import sys

import pytest

import dap

CORE = ["config", "masks", "method.learn", "method.step", "objectives", "runtime.engine"]


def test_every_public_name_is_there():
    for name in dap.__all__:
        assert getattr(dap, name) is not None
    assert set(dir(dap)) == set(dap.__all__)
    with pytest.raises(AttributeError, match="prune_me"):
        dap.prune_me  # noqa: B018


def imported_by(*modules: str) -> set[str]:
    code = f"import sys, importlib\nfor m in {modules}: importlib.import_module(m)\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_core_stands_alone():
    """A user with their own training code needs torch, numpy and safetensors, and nothing else of ours."""
    torch_itself = imported_by("torch", "torch.func", "torch.utils.data", "numpy.random", "safetensors.torch")
    ours = imported_by(*(f"dap.{name}" for name in CORE))
    packages = {name.split(".")[0] for name in ours - torch_itself} - set(sys.stdlib_module_names)
    assert packages <= {"dap", "torch", "numpy", "safetensors"}


def test_importing_dap_is_light():
    assert not {"torch", "numpy"} & imported_by("dap", "dap.config")
