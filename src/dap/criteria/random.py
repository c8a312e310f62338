"""Random: every weight is as good as any other."""

import torch
from torch import nn

from dap.criteria.calibration import Calibration, Scores
from dap.masks.attach import maskable_weights
from dap.runtime.seeding import derive_seed


def random(
    model: nn.Module,
    data: Calibration | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> Scores:
    """Uniform scores, a function of the data's seed and a weight's name.

    >>> random(nn.Linear(4, 2))["weight"].shape
    torch.Size([2, 4])
    """
    scores = Scores()
    for name, weight in maskable_weights(model, include, exclude).items():
        generator = torch.Generator("cpu").manual_seed(derive_seed("random", 0 if data is None else data.seed, name))
        scores[name] = torch.rand(weight.shape, generator=generator, device="cpu")
    return scores
