"""PGD: many steps along the sign of the gradient, each projected back into the ball."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.evaluation.attacks import ascend, check_epsilon, fooled
from dap.runtime.seeding import derive_seed


@dataclass(frozen=True)
class PGD:
    """Projected gradient descent in the L∞ ball of radius `epsilon`.

    Of several restarts, the one that fools the model counts, else the one with the highest loss. Random starts are a
    function of the seed, the restart and the image's place: the size of batches plays no part.
    """

    epsilon: float
    steps: int = 10
    step_size: float | None = None  # None: ε/2
    random_start: bool = True
    restarts: int = 1  # the worst counts
    seed: int = 0  # of the random starts
    together: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise DapError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.step_size is not None and not self.step_size > 0:
            raise DapError(f"step_size is {self.step_size}; it must be above 0")
        if self.restarts > 1 and not self.random_start:
            raise DapError(f"{self.restarts} restarts from the same place are one: leave random starts on")

    def __call__(self, model: nn.Module, pixels: Tensor, labels: Tensor, places: Sequence[int] | None = None) -> Tensor:
        worst, highest = pixels, torch.full((len(pixels),), -torch.inf, device=pixels.device)
        for restart in range(self.restarts):
            found = pixels
            if self.random_start:
                found = (pixels + self._starts(pixels, restart, places or range(len(pixels)))).clamp(0, 1)
            for _ in range(self.steps):
                found = ascend(model, found, pixels, labels, self.step_size or self.epsilon / 2, self.epsilon)
            if self.restarts == 1:
                return found
            merit = _merit(model, found, labels)
            better = merit > highest  # of several that fool the model the first
            worst = torch.where(better.view(-1, *[1] * (pixels.dim() - 1)), found, worst)
            highest = torch.where(better, merit, highest)
        return worst

    def _starts(self, pixels: Tensor, restart: int, places: Sequence[int]) -> Tensor:
        noise = np.empty(pixels.shape, np.float32)
        for row, place in zip(noise, places, strict=True):
            rng = np.random.Generator(np.random.SFC64(derive_seed("attack", self.seed, restart, place)))
            row[:] = rng.uniform(-self.epsilon, self.epsilon, pixels.shape[1:])
        return torch.from_numpy(noise).to(pixels)


@torch.no_grad()
def _merit(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """The loss; infinite where the model is fooled."""
    logits = model(pixels).float()
    loss = F.cross_entropy(logits, labels.long(), reduction="none")
    return torch.where(fooled(logits, labels), torch.inf, loss)
