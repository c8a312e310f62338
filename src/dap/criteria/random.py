"""Random: every weight is as good as any other."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dap.masking import maskable_weights


def random(
    model: nn.Module, include: Sequence[str] = (), exclude: Sequence[str] = (), seed: int = 0
) -> dict[str, Tensor]:
    """Uniform scores, a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    weights = maskable_weights(model, include, exclude)
    return {name: torch.rand(weight.shape, generator=generator) for name, weight in weights.items()}
