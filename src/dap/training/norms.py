"""Statistics of norm layers, estimated again for the weights as they are now."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dap.runtime.batches import Batches
from dap.runtime.ranks import ALONE, Ranks


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """The norm layers that keep statistics."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


@torch.no_grad()
def estimate_norms(model: nn.Module, batches: Iterable[Batches], ranks: Ranks = ALONE) -> None:
    """Give norm layers the mean statistics of `batches`, each of all domains together. Weights stay; in eval mode."""
    norms = norms_of(model.eval())
    momenta = [norm.momentum for norm in norms]
    device = next(model.parameters()).device
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    for batch in batches:
        model(torch.cat([inputs.to(device) for inputs, _ in batch.values()]))
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    ranks.mean_(buffer for buffer in model.buffers() if buffer.is_floating_point())  # each rank saw other images
