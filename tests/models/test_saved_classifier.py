import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from dap.errors import DapError
from dap.models import (
    Classifier,
    ModelCard,
    create_classifier,
    load_classifier,
    load_weights,
    save_classifier,
    small_resnet,
)

CARD = ModelCard(("cat", "dog", "elk"), pixels=64, mean=(0.5, 0.5, 0.5), notes={"seed": 3, "accuracy": {"photo": 0.9}})

MODELS = {
    "resnet18": lambda: create_classifier("resnet18", 3),
    "resnet50 v1": lambda: create_classifier("resnet50", 3, stride_in_1x1=True),
    "resized vit": lambda: create_classifier("vit_tiny_patch16_224", 3, pixels=64, dropout=0.1),
    "small_resnet": lambda: small_resnet(3, width=4),
    "double": lambda: small_resnet(3, width=4).double(),
    "channels last": lambda: small_resnet(3, width=4).to(memory_format=torch.channels_last),  # pyright: ignore
}


@pytest.mark.parametrize("kind", MODELS)
def test_round_trip(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    images = torch.randn(2, 3, 64, 64, dtype=model.head.weight.dtype)
    model.train()(images)  # running statistics that are not the initial ones
    save_classifier(model, tmp_path / "model.safetensors", CARD)
    state = torch.random.get_rng_state()
    loaded, card = load_classifier(tmp_path / "model.safetensors")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert card == CARD
    assert loaded.recipe == model.recipe
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    with torch.no_grad():
        torch.testing.assert_close(loaded(images, full=True), model.eval()(images, full=True))
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_classifier(small_resnet(3, width=4), tmp_path / "model.safetensors", CARD)
    return tmp_path / "model.safetensors"


def test_the_file_says_what_it_is(path: Path) -> None:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        assert set(file.keys()) == set(small_resnet(3, width=4).state_dict())
    assert metadata["format"] == "dap-classifier-1"
    description = json.loads(metadata["classifier"])
    assert description["recipe"] == {"name": "small_resnet", "classes": 3, "options": {"width": 4}}
    assert description["card"]["class_names"] == ["cat", "dog", "elk"]


def test_its_weights_load_into_another_classifier(path: Path) -> None:
    model = small_resnet(5, width=4)
    assert load_weights(model, path).fresh == ("head.weight", "head.bias")


def test_any_damage_is_one_line(path: Path) -> None:
    data = path.read_bytes()
    for position in range(0, len(data), len(data) // 60):
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(DapError) as caught:
            load_classifier(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    for length in (0, 5, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(DapError, match="damaged"):
            load_classifier(path)


def test_files_of_others(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DapError, match="no classifier file at"):
        load_classifier(tmp_path / "nowhere")
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {"format": "dap-classifier-2"})
    with pytest.raises(DapError, match="has format dap-classifier-2, this version reads dap-classifier-1: update dap"):
        load_classifier(path)
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(DapError, match="not written by save_classifier.*load_weights"):
        load_classifier(path)


def test_what_cannot_be_saved_leaves_the_old_file(path: Path) -> None:
    before = path.read_bytes()
    own = Classifier.of(nn.Flatten(), nn.Linear(3, 3))
    with pytest.raises(DapError, match="of your own parts, or without some of its channels, cannot be rebuilt"):
        save_classifier(own, path, CARD)
    with pytest.raises(DapError, match="the card names 2 classes, the model has 3"):
        save_classifier(small_resnet(3), path, replace(CARD, class_names=("cat", "dog")))
    with pytest.raises(DapError, match="the notes hold what JSON cannot"):
        save_classifier(small_resnet(3), path, replace(CARD, notes={"weights": torch.ones(1)}))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
