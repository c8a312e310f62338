import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from dap.errors import DapError
from dap.models import Classifier, create_classifier, load_weights, small_resnet

CLASSES = 3


def resnet(classes: int = CLASSES, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    return create_classifier("resnet18", classes)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return resnet(seed=7).network.state_dict()


def prefixed(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in weights.items()}


def domainbed(weights: dict[str, Tensor], **more: Any) -> dict[str, Any]:
    """A checkpoint as DomainBed's training script writes it, for an algorithm derived from ERM."""
    backbone = {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}
    model_dict = prefixed("featurizer.network.", backbone)
    model_dict |= {"classifier.weight": weights["fc.weight"], "classifier.bias": weights["fc.bias"]}
    model_dict |= prefixed("network.0.network.", backbone)
    model_dict |= {"network.1.weight": weights["fc.weight"], "network.1.bias": weights["fc.bias"]}
    return {
        "args": {"dataset": "PACS", "test_envs": [0], "lr": 5e-5, "hparams": None, "skip_model_save": False},
        "model_input_shape": (3, 224, 224),
        "model_num_classes": CLASSES,
        "model_num_domains": 3,
        "model_hparams": {"resnet18": True, "nonlinear_classifier": False, "weight_decay": 0.0},
        "model_dict": model_dict | more,
    }


DIALECTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda weights: weights,
    "state_dict": lambda weights: {"epoch": 3, "arch": "resnet18", "state_dict": prefixed("module.", weights)},
    "model": lambda weights: {"model": weights, "lr": 0.1},
    "compiled": lambda weights: prefixed("_orig_mod.", weights),
    "compiled and distributed": lambda weights: prefixed("_orig_mod.module.", weights),
    "ours": lambda weights: prefixed("network.", weights),
    "domainbed": domainbed,
    "domainbed alone": lambda weights: domainbed(weights)["model_dict"],
}


WRAPPED = {"state_dict", "model", "domainbed"}  # beside values that are no tensors, which safetensors cannot hold


@pytest.mark.parametrize(
    ("dialect", "suffix"),
    [(name, ".pth") for name in DIALECTS] + [(name, ".safetensors") for name in DIALECTS if name not in WRAPPED],
)
def test_every_dialect(dialect: str, suffix: str, weights: dict[str, Tensor], tmp_path: Path) -> None:
    content, path = DIALECTS[dialect](weights), tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(content, path)
    else:
        safetensors.torch.save_file({name: value.clone() for name, value in content.items()}, path)
    model = resnet()
    report = load_weights(model, path)
    assert all(torch.equal(value, weights[name]) for name, value in model.network.state_dict().items())
    assert (set(report.loaded), report.fresh, report.unused) == (set(weights), (), ())


def test_domainbed_algorithms_with_more_parts(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(
        domainbed(weights, **{"discriminator.input.weight": torch.ones(2, 2), "q": torch.ones(3)}), tmp_path / "x.pkl"
    )
    report = load_weights(resnet(), tmp_path / "x.pkl")
    assert report.unused == ("discriminator.input.weight", "q")
    assert report.fresh == ()


def test_head_for_other_classes_stays_fresh(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "x.pth")
    model, untouched = resnet(classes=5), resnet(classes=5)
    report = load_weights(model, tmp_path / "x.pth")
    assert report.fresh == report.unused == ("fc.weight", "fc.bias")
    assert len(report.loaded) == len(weights) - 2
    assert torch.equal(model.head.weight, untouched.head.weight)
    # The way through the constructor is the same one, and so is the head of a seed.
    torch.manual_seed(0)
    assert torch.equal(create_classifier("resnet18", 5, tmp_path / "x.pth").head.weight, untouched.head.weight)


def test_half_precision_becomes_the_models(weights: dict[str, Tensor], tmp_path: Path) -> None:
    halves = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    safetensors.torch.save_file(halves, tmp_path / "x.safetensors")
    model = resnet()
    load_weights(model, tmp_path / "x.safetensors")
    assert model.head.weight.dtype == torch.float32
    assert torch.equal(model.head.weight, weights["fc.weight"].half().float())


def test_old_files_lack_counters(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({name: w for name, w in weights.items() if "num_batches" not in name}, tmp_path / "x.pth")
    assert load_weights(resnet(), tmp_path / "x.pth").fresh == ()


def without(weights: dict[str, Tensor], pattern: str) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if not re.search(pattern, name)}


REFUSED: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda w: without(w, "layer4"), "it lacks layer4.0.conv1.weight, .* and .* more"),
    "shape": (
        lambda w: w | {"conv1.weight": w["conv1.weight"][:, :1]},
        r"conv1.weight \(64, 1, 7, 7\) instead of \(64, 3",
    ),
    "integers": (lambda w: w | {"conv1.weight": w["conv1.weight"].char()}, "no floating-point numbers in conv1.weight"),
    "nonlinear": (lambda w: domainbed(w, **{"classifier.0.weight": torch.ones(2, 2)}), "nonlinear_classifier=False"),
    "nothing": (lambda _: {"epoch": 3}, "holds no state dict"),
    "list": (lambda _: [1, 2], "holds no state dict"),
    "namespace": (
        lambda w: domainbed(w) | {"args": argparse.Namespace(lr=1)},
        "holds argparse.Namespace.*model_dict",
    ),
    "numpy": (lambda w: domainbed(w) | {"args": {"lr": np.float64(1)}}, r"holds numpy\S*scalar.*model_dict"),
    "module": (lambda _: nn.Linear(1, 1), r"holds torch\S*Linear"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_changes_nothing(case: str, weights: dict[str, Tensor], tmp_path: Path) -> None:
    make, message = REFUSED[case]
    torch.save(make(weights), tmp_path / "x.pth")
    model, untouched = resnet(), resnet()
    with pytest.raises(DapError, match=message) as caught:
        load_weights(model, tmp_path / "x.pth")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "x.pth") in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("length", [0, 3, 1000])
def test_damaged_files_are_one_line(suffix: str, length: int, weights: dict[str, Tensor], tmp_path: Path) -> None:
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    torch.save(weights, whole) if suffix == ".pth" else safetensors.torch.save_file(weights, whole)
    cut.write_bytes(whole.read_bytes()[:length])
    with pytest.raises(DapError, match="damaged or not a") as caught:
        load_weights(resnet(), cut)
    assert "\n" not in str(caught.value)


def test_own_parts_load_their_own_state_dict(tmp_path: Path) -> None:
    model, other = small_resnet(3, width=4), small_resnet(3, width=4)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "x.safetensors")
    load_weights(other, tmp_path / "x.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def photos(folder: Path, count: int = 10) -> Tensor:
    images = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.glob("*.jpg"))[:count]]
    mean, std = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
    return ((torch.from_numpy(np.stack(images)) / 255 - mean) / std).permute(0, 3, 1, 2)


def test_imagenet_weights_without_a_head(shared: Path) -> None:
    model = resnet(7)
    report = load_weights(model, shared / "weights" / "resnet18.safetensors")
    assert report.fresh == ("fc.weight", "fc.bias")
    assert report.unused == ()
    folders = [shared / "data" / "PACS" / "photo" / name for name in ("dog", "guitar")]
    with torch.no_grad():
        dogs, guitars = (nn.functional.normalize(model.eval()(photos(f), full=True).features) for f in folders)
    centre = (dogs.mean(0) + guitars.mean(0)) / 2
    axis = dogs[:5].mean(0) - guitars[:5].mean(0)
    assert ((dogs[5:] - centre) @ axis > 0).all()
    assert ((guitars[5:] - centre) @ axis < 0).all()


def test_original_resnet50_needs_its_own_strides(shared: Path) -> None:
    """With the wrong strides it still names most photos, only less surely: nothing else would tell."""
    expected = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546)}  # ImageNet's classes
    confidence: dict[bool, float] = {}
    for stride_in_1x1 in (True, False):
        path = shared / "weights" / "resnet50_v1.safetensors"
        model = create_classifier("resnet50", 1000, path, stride_in_1x1=stride_in_1x1).eval()
        shares: list[Tensor] = []
        for name, classes in expected.items():
            with torch.no_grad():
                probabilities = model(photos(shared / "data" / "PACS" / "photo" / name)).softmax(1)
            shares.append(probabilities[:, list(classes)].sum(1))
            assert (shares[-1] > 0.5).sum() >= 8
        confidence[stride_in_1x1] = torch.stack(shares).mean().item()
    assert confidence[True] > 0.85 > confidence[False]
