"""Control: no weight is better than another, and none is cut; what training on alone gives."""

import torch
from torch import nn

from dap.criteria.calibration import Calibration, Scores
from dap.masks.attach import maskable_weights


def control(
    model: nn.Module,
    data: Calibration | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> Scores:
    """Ones.

    >>> control(nn.Linear(2, 1))["weight"].tolist()
    [[1.0, 1.0]]
    """
    return Scores({name: torch.ones_like(weight) for name, weight in maskable_weights(model, include, exclude).items()})
