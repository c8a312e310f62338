"""ONNX files and programs: what is written is right, and what is damaged is noticed."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from dap.errors import DapError
from dap.export import export_onnx, export_program, open_onnx
from dap.models import ModelCard

CARD = ModelCard(("cat", "dog"), 8)
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2))


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_file_that_differs_is_not_written_and_the_model_stays_as_it_is(kind, tmp_path):
    model, path = network().double(), tmp_path / f"model.{kind}"

    def write(reference):
        if kind == "onnx":
            return export_onnx(model, path, CARD, IMAGES, reference)
        return export_program(model, path, IMAGES, reference)

    assert write(None) < 1e-5
    assert model.training
    assert next(model.parameters()).dtype == torch.float64
    path.unlink()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[4].bias += 1
    with pytest.raises(DapError, match="the model differs by 1 from the run's: it was not written"):
        write(other)
    assert not list(tmp_path.iterdir())


def test_a_damaged_onnx_file_is_an_error(tmp_path):
    path, flipped = tmp_path / "model.onnx", tmp_path / "flipped.onnx"
    export_onnx(network(), path, CARD, IMAGES)
    assert open_onnx(path).card == CARD
    content = path.read_bytes()
    assert str(Path(__file__).parent).encode() not in content  # nor any other folder of this machine
    weights = network()[4].weight.detach().numpy().tobytes()
    names = content.index(b'["cat", "dog"]')
    for place in (content.index(weights) + 40, names + 3):
        flipped.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DapError, match="flipped.onnx is damaged .its checksum differs.: export it again"):
            open_onnx(flipped)
