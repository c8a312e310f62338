"""Magnitude: large weights are kept."""

from torch import nn

from dap.criteria.calibration import Calibration, Scores
from dap.masks.attach import maskable_weights


def magnitude(
    model: nn.Module,
    data: Calibration | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> Scores:
    """|w|; no data is looked at.

    >>> magnitude(nn.Linear(4, 2))["weight"].shape
    torch.Size([2, 4])
    """
    return Scores({name: weight.detach().abs() for name, weight in maskable_weights(model, include, exclude).items()})
