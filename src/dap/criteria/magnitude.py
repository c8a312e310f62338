"""Magnitude: large weights are kept."""

from collections.abc import Sequence

from torch import Tensor, nn

from dap.masking import maskable_weights


def magnitude(model: nn.Module, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> dict[str, Tensor]:
    """|w| for every maskable weight."""
    return {name: weight.detach().abs() for name, weight in maskable_weights(model, include, exclude).items()}
