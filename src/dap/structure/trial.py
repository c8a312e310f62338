"""Whether channels are what tracing says: half of each group is cut, in three ways that must come to the same."""

import copy

import torch
from torch import Tensor, nn

from dap.masks.attach import MaskedModel, bake, frozen
from dap.runtime.outputs import Outputs
from dap.structure.channels import ChannelLayout, Channels
from dap.structure.removal import remove_channels

_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}  # of the largest number


def is_removable(model: nn.Module, channels: Channels, inputs: Tensor) -> bool:
    """Whether zeros in place, channels that are gone and gates of 0 give the same outputs.

    They do not where channels are mixed in a way that tracing does not see, or where an activation makes something of
    nothing: then a gate of 0 is no absent channel.
    """
    kept = torch.ones(channels.total, dtype=torch.bool, device="cpu")
    for group in channels.groups.values():
        kept[group.start + 1 : group.stop : 2] = False
    for dtype in _ROUNDING:  # in double precision nothing is taken for rounding; a model may know only its own
        try:
            return _agree(copy.deepcopy(model).to(dtype), channels, kept, inputs.to(dtype))
        except Exception:
            continue
    return False


@torch.no_grad()
def _agree(model: nn.Module, channels: Channels, kept: Tensor, inputs: Tensor) -> bool:
    masks = channels.masks(kept)
    with frozen(model):
        gates = ChannelLayout(model, channels).masked_weights(kept.to(inputs))
        found = [
            bake(model, masks)(inputs.clone()),  # a model may change its inputs in place
            remove_channels(model, masks)(inputs.clone()),
            MaskedModel(model)(gates, inputs.clone()),
        ]
    masked, *others = (Outputs.of(one).logits for one in found)
    limit = _ROUNDING[inputs.dtype] * max(1e-6, float(masked.abs().max()))
    return all(float((other - masked).abs().max()) <= limit for other in others)
