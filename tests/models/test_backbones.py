import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from dap.errors import DapError
from dap.models import Classifier, create_classifier
from dap.models.torchvision_repair import repair_torchvision

NAMES = {  # and the sizes of stage maps for images of 64 pixels
    "resnet18": [16, 16, 8, 4, 2],
    "resnet50": [16, 16, 8, 4, 2],
    "vit_tiny_patch16_224": [4, 4, 4, 4],
    "convnext_atto": [16, 8, 4, 2],
    "efficientnet_b0": [32, 16, 8, 4, 2],
    "mobilenetv3_small_050": [32, 16, 8, 4, 2],
    "regnetx_002": [32, 16, 8, 4, 2],
    "densenet121": [],
}


def create(name: str, classes: int = 3, dropout: float = 0.0) -> Classifier:
    torch.manual_seed(0)
    return create_classifier(name, classes, pixels=64 if "vit" in name else None, dropout=dropout)


@pytest.mark.parametrize(
    ("name", "dropout"), [*((name, 0.0) for name in NAMES), ("resnet18", 0.5), ("convnext_atto", 0.5)]
)
def test_agrees_with_the_bare_network_to_the_bit(name: str, dropout: float) -> None:
    repair_torchvision()
    import timm

    model = create(name, dropout=dropout)
    size = {"img_size": 64} if "vit" in name else {}
    bare = timm.create_model(name, num_classes=3, drop_rate=dropout, **size)
    bare.load_state_dict(model.network.state_dict())
    images = torch.randn(2, 3, 64, 64)
    for training in (True, False):
        results = []
        for network, options in ((bare, {}), (model, {}), (model, {"full": True})):
            torch.manual_seed(1)  # the same units drop out
            with torch.no_grad():
                results.append(copy.deepcopy(network).train(training)(images, **options))
        expected, logits, outputs = results
        assert torch.equal(logits, expected)
        assert torch.equal(outputs.logits, expected)
        assert outputs.features.shape == (2, model.feature_size)
        assert [stage.shape[-1] for stage in outputs.stages] == NAMES[name]
        assert tuple(stage.shape[1] for stage in outputs.stages) == (model.stage_channels if NAMES[name] else ())


def test_names_in_the_state_dict_are_timms_after_a_prefix() -> None:
    repair_torchvision()
    import timm

    theirs = timm.create_model("resnet18", num_classes=3).state_dict()
    assert list(create("resnet18").state_dict()) == [f"network.{name}" for name in theirs]


def test_stem_of_a_resnet_is_taken_after_its_pooling() -> None:
    model = create("resnet18").eval()
    images = torch.randn(2, 3, 64, 64)
    seen: list[torch.Tensor] = []
    for part in ("maxpool", "layer1", "layer2", "layer3", "layer4"):
        model.network.get_submodule(part).register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    outputs = model(images, full=True)
    assert len(seen) == 5  # each ran once
    assert all(torch.equal(one, other) for one, other in zip(outputs.stages, seen, strict=True))


def test_stages_of_a_vit_are_the_ends_of_four_equal_parts() -> None:
    model = create("vit_tiny_patch16_224").eval()
    images = torch.randn(2, 3, 64, 64)
    tokens: list[torch.Tensor] = []
    for block in (2, 5, 8, 11):
        module = model.network.get_submodule(f"blocks.{block}")
        module.register_forward_hook(lambda _module, _inputs, output: tokens.append(output))
    for stage, seen in zip(model(images, full=True).stages, tokens, strict=True):
        assert torch.equal(stage.flatten(2), seen[:, 1:].transpose(1, 2))  # without the class token


def test_fresh_weights_depend_on_torchs_seed_alone() -> None:
    first = create("resnet18")
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    second = create("resnet18")
    third = create_classifier("resnet18", 3)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, third.head.weight)


def test_a_network_without_stages_is_named() -> None:
    with pytest.raises(DapError, match="densenet121 exposes no stages"):
        _ = create("densenet121").stage_channels


def test_strides_of_the_original_resnet50() -> None:
    model = create_classifier("resnet50", 3, stride_in_1x1=True)
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        stride = 1 if stage == "layer1" else 2
        for conv, expected in (("conv1", stride), ("conv2", 1), ("downsample.0", stride)):
            module = model.network.get_submodule(f"{stage}.0.{conv}")
            assert isinstance(module, nn.Conv2d)
            assert module.stride == (expected, expected)
    assert [stage.shape[-1] for stage in model(torch.randn(1, 3, 64, 64), full=True).stages] == NAMES["resnet50"]
    for name in ("resnet18", "convnext_atto", "vit_tiny_patch16_224"):
        with pytest.raises(DapError, match=f"bottleneck blocks, such as resnet50, not {name}"):
            create_classifier(name, 3, stride_in_1x1=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet81"}, "no backbone is called 'resnet81': did you mean .*resnet18"),
        ({"name": "small_resnett"}, "did you mean small_resnet"),
        ({"name": "qqqq"}, "timm.list_models"),
        ({"name": "resnet18.nonsense"}, "no weights are called 'resnet18.nonsense'; timm has: .*resnet18.a1_in1k"),
        ({"name": "deit_tiny_distilled_patch16_224"}, "has 2 heads, and a classifier needs one nn.Linear"),
        ({"name": "resnetv2_50"}, "has a Conv2d as its head"),
        ({"name": "volo_d1_224"}, "adds a second head to its logits"),
        ({"name": "resnet18", "classes": 0}, "at least one class, not 0"),
        ({"name": "small_resnet", "dropout": 0.1}, "small_resnet takes no"),
        ({"name": "small_resnet", "weights": "pretrained"}, "no pretrained weights"),
        ({"name": "mixer_s32_224", "pixels": 64}, "takes images of 224 pixels only, not 64"),
        ({"name": "resnet18", "weights": "nowhere.pth"}, "no weights at nowhere.pth"),
    ],
)
def test_refusals(arguments: dict, message: str) -> None:
    with pytest.raises(DapError, match=message) as caught:
        create_classifier(**{"classes": 3, **arguments})
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    repair_torchvision()
    import timm  # noqa: F401
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DapError, match="could not fetch the pretrained weights of resnet18 .*local file") as caught:
        create_classifier("resnet18", 3, weights="pretrained")
    assert "\n" not in str(caught.value)
