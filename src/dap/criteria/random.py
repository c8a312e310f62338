"""Random: every weight is as good as any other."""

import torch
from torch import Tensor, nn

from dap.masking import maskable_weights


def random(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Uniform scores, a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(weight.shape, generator=generator) for name, weight in maskable_weights(model).items()}
