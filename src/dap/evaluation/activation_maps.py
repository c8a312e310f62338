"""Grad-CAM: where in an image a convolutional network looks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.masks.attach import frozen
from dap.runtime.outputs import Outputs


class NoMaps(DapError):
    """The model is not made of convolutions."""


def _is_map(output: Tensor, images: Tensor) -> bool:
    """Of more than one place, and of the image's proportions: tokens of a transformer's heads are not."""
    (height, width), (rows, columns) = images.shape[-2:], output.shape[-2:]
    return rows * columns > 1 and abs(rows * width - columns * height) <= max(height, width)


def activation_maps(model: nn.Module, images: Tensor, labels: Tensor | None = None, layer: str | None = None) -> Tensor:
    """Maps [n, h, w] of the size of `images`, from 0 to 1: what speaks for each image's label, else for the prediction.

    `layer` names the layer that is looked at; else it is the last that gives maps of more than one place.

    >>> convolutions = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()
    >>> network = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    >>> activation_maps(network, torch.rand(5, 3, 8, 8)).shape
    torch.Size([5, 8, 8])
    """
    modules = dict(model.named_modules())
    if layer is None and sum(isinstance(module, nn.Conv2d) for module in modules.values()) < 2:
        # A transformer's one convolution cuts patches; what has four dimensions after it are heads, or channels last.
        raise NoMaps("class activation maps are for networks of convolutions")
    if layer is not None and layer not in modules:
        raise DapError(f"the model has no layer {layer!r}")
    seen: list[Tensor] = []

    def look(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and _is_map(output, images):
            seen.append(output)

    looked_at = [modules[layer]] if layer else [module for module in modules.values() if not list(module.children())]
    hooks = [module.register_forward_hook(look) for module in looked_at]
    try:
        with frozen(model), torch.enable_grad():
            logits = Outputs.of(model(images.detach().requires_grad_())).logits
            if not seen:
                raise NoMaps("no layer gives maps [n, channels, h, w]: class activation maps are for convolutions")
            chosen = logits.argmax(1) if labels is None else labels
            features = seen[-1]
            (gradient,) = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), features)
    finally:
        for hook in hooks:
            hook.remove()
    maps = (gradient.mean((2, 3), keepdim=True) * features.detach()).sum(1, keepdim=True).relu()
    maps = F.interpolate(maps, images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    highest = maps.flatten(1).amax(1).clamp_min(torch.finfo(maps.dtype).tiny)
    return maps / highest[:, None, None]
