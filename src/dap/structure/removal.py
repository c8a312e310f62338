"""Channels that are cut are taken out: a smaller network of the same kind, without zeros."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dap.errors import DapError
from dap.masks.masks import Masks
from dap.models.classifier import Classifier
from dap.runtime.user_models import copied


def remove_channels(model: nn.Module, masks: Masks) -> nn.Module:
    """A copy of `model` without the channels that `masks`, by an allocation of whole coupled channels, cut.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> keep = torch.tensor([True, False, True])
    >>> cut = {"0.weight": keep[:, None].expand(3, 2), "0.bias": keep, "2.weight": keep.expand(2, 3)}
    >>> remove_channels(model, Masks(cut))
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    masks.check(model)
    small = copied(model)
    with torch.no_grad():
        for path, module in small.named_modules():
            mine = {
                name: masks[full]
                for name, _ in module.named_parameters(recurse=False)
                if (full := f"{path}.{name}" if path else name) in masks
            }
            if mine:
                _shrink(path, module, mine)
        for module in small.modules():
            _tell(module)
    if isinstance(small, Classifier):
        small.recipe = None  # by which it would be made again with all its channels
    return small


def _shrink(path: str, module: nn.Module, masks: dict[str, Tensor]) -> None:
    kept = {name: _sides(f"{path}.{name}", mask) for name, mask in masks.items()}
    for name, sides in kept.items():
        tensor = getattr(module, name)
        for dim, side in enumerate(sides):
            tensor = tensor.index_select(dim, side.nonzero().squeeze(1).to(tensor.device))
        setattr(module, name, nn.Parameter(tensor.clone(), getattr(module, name).requires_grad))
    if isinstance(module, _BatchNorm) and "weight" in kept:
        rows = kept["weight"][0].nonzero().squeeze(1)
        for name in ("running_mean", "running_var"):
            if (buffer := getattr(module, name)) is not None:
                setattr(module, name, buffer.index_select(0, rows.to(buffer.device)))


def _sides(name: str, mask: Tensor) -> list[Tensor]:
    """What is kept along outputs and inputs; all else is one product of the two."""
    if not mask.any():
        raise DapError(f"nothing of {name} is kept: such a layer cannot be removed by its channels")
    outputs = mask.reshape(len(mask), -1).any(1)
    if mask.ndim == 1:
        return [outputs]
    inputs = mask.movedim(1, 0).reshape(mask.shape[1], -1).any(1)
    whole = outputs.view(-1, 1, *[1] * (mask.ndim - 2)) & inputs.view(1, -1, *[1] * (mask.ndim - 2))
    if not torch.equal(whole.expand(mask.shape), mask):
        raise DapError(f"the mask of {name} is not one of whole channels: prune with the allocation flops")
    return [outputs, inputs]


def _tell(module: nn.Module) -> None:
    """A layer's own record of its shape follows its parameters."""
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        rows, columns = module.weight.shape[:2]
        if module.groups > 1:  # depthwise, the only kind whose channels are removed
            module.groups = rows if module.groups == module.in_channels == module.out_channels else module.groups
        module.out_channels, module.in_channels = rows, columns * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _BatchNorm) and module.affine:
        module.num_features = len(module.weight)
    elif is_attention(module):
        module.attn_dim = module.proj.weight.shape[1]  # pyright: ignore
        module.num_heads = module.attn_dim // module.head_dim  # pyright: ignore


def is_attention(module: nn.Module) -> bool:
    """Whether it is timm's attention with a packed projection and nothing else that belongs to a head."""
    if not all(hasattr(module, name) for name in ("qkv", "proj", "num_heads", "head_dim", "attn_dim")):
        return False
    known = {f"{layer}.{name}" for layer in ("qkv", "proj") for name in ("weight", "bias")}
    known |= {f"{norm}.{name}" for norm in ("q_norm", "k_norm") for name in ("weight", "bias")}
    return {name for name, _ in module.named_parameters()} <= known
