"""Networks by name: timm's, and our own small one. The only file that knows timm."""

import difflib
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dap.errors import DapError
from dap.models.classifier import Classifier, Encoder, Recipe
from dap.models.small_resnet import small_resnet
from dap.models.torchvision_repair import repair_torchvision
from dap.models.weights import load_weights
from dap.runtime.offline import is_local_only

_RESNET_STEM = ("conv1", "bn1", "act1", "maxpool")
_RESNET_STAGES = ("layer1", "layer2", "layer3", "layer4")
_MANY_STAGES = 6  # above it the stages are a transformer's blocks, all of one size


def create_classifier(
    name: str,
    classes: int,
    weights: str | Path | None = None,
    *,
    pixels: int | None = None,
    dropout: float = 0.0,
    stride_in_1x1: bool = False,
) -> Classifier:
    """A network by its name in timm, or `small_resnet`, with a head for `classes`.

    `weights` is a local file (see `load_weights`), `"pretrained"` (timm's, from the hub) or None, random weights.
    `pixels` resizes networks that are tied to an image size, such as ViT, after their weights are loaded.
    `dropout` acts on the pooled features. `stride_in_1x1` is for the original ResNet-50 weights: there the first block
    of a stage halves the map in its 1×1 convolution, in today's networks in the 3×3 one.

    >>> create_classifier("resnet18", classes=7)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 7])
    """
    if classes < 1:
        raise DapError(f"a classifier needs at least one class, not {classes}")
    options = {"pixels": pixels, "dropout": dropout, "stride_in_1x1": stride_in_1x1}
    if name == "small_resnet":
        if any(options.values()) or weights == "pretrained":
            raise DapError("small_resnet takes no pixels, dropout or stride_in_1x1 and has no pretrained weights")
        model = small_resnet(classes)
    else:
        network: Any = _timm_network(name, classes, weights == "pretrained", dropout)
        if stride_in_1x1:
            _move_strides(network, name)
        encoder, channels = _stages(network)
        model = Classifier(network, _head_name(network, name), encoder, channels, Recipe(name, classes, options))
    if weights is not None and weights != "pretrained":
        load_weights(model, weights)
    if pixels is not None:
        _resize(model.network, name, pixels)
    return model


def _timm_network(name: str, classes: int, pretrained: bool, dropout: float) -> nn.Module:
    repair_torchvision()
    import timm

    if not timm.is_model(name):
        known = ["small_resnet", *timm.list_models()]
        close = difflib.get_close_matches(name, known, 4) or [model for model in known if name in model][:4]
        hint = f"did you mean {', '.join(close)}?" if close else "timm.list_models() lists the names"
        raise DapError(f"no backbone is called {name!r}: {hint}")
    if pretrained and is_local_only() and not getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None):
        raise DapError(f"the weights of {name} come from a plain address: allow the network with --trust-code")
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=classes, drop_rate=dropout)
    except Exception as error:
        if "Invalid pretrained tag" in str(error):
            tags = ", ".join(timm.list_pretrained(name.split(".")[0])) or "none"
            raise DapError(f"no weights are called {name!r}; timm has: {tags}") from None
        if not pretrained:
            raise
        # The hub's errors have many types, whatever its client was built on.
        reason = str(error).strip().split("\n")[0].rstrip(".")
        remedy = "allow the network with --trust-code" if is_local_only() else "check the connection"
        raise DapError(
            f"could not fetch the pretrained weights of {name} ({reason}): {remedy}, or give a local "
            f"file, weights='…/{name}.safetensors'"
        ) from None


def _head_name(network: Any, name: str) -> str:
    if getattr(network, "aux_head", None) is not None:  # its logits are not those of the head alone
        raise DapError(f"{name} adds a second head to its logits: choose a backbone with one head")
    head = network.get_classifier()
    if not isinstance(head, nn.Linear):
        found = f"{len(head)} heads" if isinstance(head, tuple) else f"a {type(head).__name__} as its head"
        raise DapError(f"{name} has {found}, and a classifier needs one nn.Linear: choose a backbone with such a head")
    return next(path for path, module in network.named_modules() if module is head)


def _stages(network: Any) -> tuple[Encoder, tuple[int, ...]]:
    """How to get the features of each stage, and their channels."""
    if not hasattr(network, "forward_intermediates"):
        return _encode_without_stages, ()
    channels = [stage["num_chs"] for stage in network.feature_info]
    if all(hasattr(network, part) for part in (*_RESNET_STEM, *_RESNET_STAGES)):
        return _encode_resnet, tuple(channels)
    indices = list(range(len(channels)))
    if len(channels) > _MANY_STAGES:
        # The ends of four equal parts: blocks 3, 6, 9 and 12 of twelve.
        indices = [len(channels) * part // 4 - 1 for part in (1, 2, 3, 4)]
    return partial(_encode_intermediates, indices=indices), tuple(channels[index] for index in indices)


def _encode_resnet(network: Any, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    # timm's own stem feature lies before the pooling; MIRO's, after it, is a quarter of the size.
    x = images
    for part in _RESNET_STEM:
        x = getattr(network, part)(x)
    stages = [x]
    for part in _RESNET_STAGES:
        stages.append(getattr(network, part)(stages[-1]))
    return network.forward_head(stages[-1], pre_logits=True), tuple(stages)


def _encode_intermediates(network: Any, images: Tensor, indices: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    maps, stages = network.forward_intermediates(images, indices=indices, output_fmt="NCHW")
    return network.forward_head(maps, pre_logits=True), tuple(stages)


def _encode_without_stages(network: Any, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    return network.forward_head(network.forward_features(images), pre_logits=True), ()


def _move_strides(network: nn.Module, name: str) -> None:
    for stage in _RESNET_STAGES[1:]:
        block = getattr(network, stage, [None])[0]
        match getattr(block, "conv1", None), getattr(block, "conv2", None):
            case nn.Conv2d(kernel_size=(1, 1)) as conv1, nn.Conv2d(stride=(2, 2)) as conv2:
                conv1.stride, conv2.stride = (2, 2), (1, 1)
            case _:
                raise DapError(f"stride_in_1x1 is for ResNets with bottleneck blocks, such as resnet50, not {name}")


def _resize(network: Any, name: str, pixels: int) -> None:
    if hasattr(network, "set_input_size"):
        try:
            network.set_input_size(img_size=pixels)
        except (AssertionError, RuntimeError, ValueError) as error:
            raise DapError(f"{name} cannot take images of {pixels} pixels ({error}): choose another size") from None
    else:
        size = network.default_cfg["input_size"][-1]
        if network.default_cfg.get("fixed_input_size") and pixels != size:
            raise DapError(f"{name} takes images of {size} pixels only, not {pixels}")
