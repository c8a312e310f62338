import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import make_model
from dap.data import digits
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.export import export_onnx, open_onnx
from dap.export.int8 import Runtime, quantise_onnx
from dap.models import ModelCard, small_resnet
from dap.structure import find_channels, remove_channels

SOURCES, TARGET = ("plain", "textured"), "rotated"
CARD = ModelCard(tuple("0123456789"), 16, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def relative(path: Path, exact: Path, images: torch.Tensor) -> float:
    """How far logits are from those of another file, as a share of their size."""
    found, expected = (open_onnx(file).run(images.numpy()) for file in (path, exact))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.fixture(scope="module")
def domains():
    """At half their side, which is soon learnt."""
    return {domain: (F.avg_pool2d(data.tensors[0], 2), data.tensors[1]) for domain, data in digits().items()}


@pytest.fixture(scope="module")
def calibration(domains):
    return [domains[domain][0][:size] for domain, size in zip(SOURCES, (60, 40), strict=True)]


@pytest.fixture(scope="module")
def model(domains):
    """Trained on the sources, on one thread: for so small a network, others only wait for each other."""
    torch.manual_seed(0)
    images, labels = (torch.cat(parts) for parts in zip(*(domains[domain] for domain in SOURCES), strict=True))
    model, threads = small_resnet(10, width=16), torch.get_num_threads()
    torch.set_num_threads(1)
    optimiser = torch.optim.Adam(model.parameters())
    for step in range(60):
        optimiser.param_groups[0]["lr"] = 4e-3 * (1 - step / 60)
        chosen = torch.randint(len(images), (32,))
        optimiser.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimiser.step()
    yield model.eval()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def exported(model, calibration, tmp_path_factory):
    path = tmp_path_factory.mktemp("int8") / "float.onnx"
    export_onnx(model, path, CARD, calibration[0][:2])
    return path


def test_small_and_nearly_as_good(exported, domains, calibration, tmp_path):
    path = tmp_path / "int8.onnx"
    agreement = quantise_onnx(exported, path, calibration)
    assert path.stat().st_size < 0.4 * exported.stat().st_size
    before, after = open_onnx(exported), open_onnx(path)
    assert after.card == before.card
    assert after.card == before.card == CARD
    for domain in (*SOURCES, TARGET):
        dense = accuracy(Runtime(before), [domains[domain]])
        assert dense > (0.9 if domain in SOURCES else 0.2)
        assert accuracy(Runtime(after), [domains[domain]]) == pytest.approx(dense, abs=0.03)
        assert relative(path, exported, domains[domain][0]) < 0.15  # products that saturate take it far beyond
    seen = torch.cat(calibration).numpy()
    assert agreement == (before.run(seen).argmax(1) == after.run(seen).argmax(1)).mean() > 0.95
    five = after.run(seen[:5])
    np.testing.assert_allclose(after.run(seen[:1]), five[:1], atol=1e-4)


def test_the_same_bytes_again(exported, calibration, tmp_path):
    quantise_onnx(exported, tmp_path / "a.onnx", calibration)
    quantise_onnx(str(exported), str(tmp_path / "b.onnx"), (batch.double().numpy() for batch in calibration))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


def depthwise() -> nn.Module:
    """As in MobileNetV2, with a channel that is cut and one that is nearly dead."""
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU6(),
        nn.Conv2d(12, 12, 3, groups=12),
        nn.ReLU6(),
        nn.Conv2d(12, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    with torch.no_grad():
        for name in ("0.weight", "2.weight"):
            model.get_parameter(name)[4] = 0
            model.get_parameter(name)[5] *= 1e-9
    return model


def without_channels() -> nn.Module:
    model = depthwise().eval()
    channels = find_channels(model, torch.randn(1, 3, 8, 8))
    small = remove_channels(model, channels.masks(channels.cut(torch.rand(channels.total), 0.4)))
    assert small.get_parameter("0.weight").shape < model.get_parameter("0.weight").shape
    return small


def attention() -> nn.Module:
    return make_model("attention")


@pytest.mark.parametrize("make", [depthwise, without_channels, attention])
def test_other_networks(make, tmp_path, monkeypatch, capfd):
    torch.manual_seed(0)
    model, images = make(), torch.randn(40, 3, 8, 8)
    paths = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    export_onnx(model, paths[0], ModelCard(tuple("abc"), 8), images[:2])
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.DEBUG)
    capfd.readouterr()
    quantise_onnx(*paths, [images[:30]])
    assert capfd.readouterr() == ("", "")
    assert logging.root.handlers == []
    assert 0 < relative(paths[1], paths[0], images) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path_in": "absent.onnx"}, "no ONNX file at absent.onnx: export the model again"),
        ({"path_in": "damaged.onnx"}, "damaged.onnx is damaged or not an ONNX file .*: export the model again"),
        ({"path_in": "int8.onnx"}, "int8.onnx is in integers already: give the file that export_onnx wrote"),
        ({"calibration": []}, "no images for calibration: give some of every source domain"),
        ({"calibration": [torch.zeros(0, 3, 16, 16)]}, "no images for calibration"),
        ({"calibration": [(torch.zeros(2, 3, 16, 16), torch.zeros(2))]}, "is a tuple: give images alone, \\[n, c, h"),
        ({"calibration": [torch.zeros(2, 3, 8, 8)]}, "float.onnx does not take these images .* as its card says"),
    ],
)
def test_what_cannot_be_quantised(change, message, exported, calibration, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("damaged.onnx").write_bytes(exported.read_bytes()[:5000])
    if change.get("path_in") == "int8.onnx":
        quantise_onnx(exported, "int8.onnx", calibration)
    Path("out.onnx").write_text("from before")
    files = sorted(Path().iterdir())
    with pytest.raises(DapError, match=message) as raised:
        quantise_onnx(**({"path_in": exported, "path_out": "out.onnx", "calibration": calibration} | change))
    assert "\n" not in str(raised.value)
    assert sorted(Path().iterdir()) == files
    assert Path("out.onnx").read_text() == "from before"
