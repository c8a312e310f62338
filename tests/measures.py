"""Measures of sensitivity for tests: those of the registry, those of the docs, and one that looks at weights."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from dap.method.sensitivities import SENSITIVITIES, Cost, Sensitivity

PAGE = Path(__file__).parents[1] / "docs" / "sensitivities.md"


class Spread(Sensitivity):
    """The share of the squared gradients that their mean does not explain."""

    gradients = "weight"
    range = (0.0, 1.0)

    def __init__(self, gates: int, domains: Collection[str], device: torch.device, memory: dict[str, Tensor]):
        self.domains = len(domains)
        self.sums, self.squares = torch.zeros(2, gates, device=device)

    def add(self, domain: str, piece: slice, gradient: Tensor) -> None:
        self.sums[piece].add_(gradient)
        self.squares[piece].addcmul_(gradient, gradient)

    def score(self, piece: slice) -> Tensor:
        squares = self.squares[piece].clamp(min=torch.finfo(torch.float32).tiny)
        explained = self.sums[piece].square().div_(squares).div_(self.domains)
        return explained.neg_().add_(squares > torch.finfo(torch.float32).tiny).clamp_(0, 1)

    @staticmethod
    def cost(domains: int) -> Cost:
        return Cost(passes=2 * domains + 8, working=8, kept=0)


def examples() -> tuple[str, str]:
    """The code of the docs page: a complete example, and a measure that shapes the gradient."""
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return first, second


@contextmanager
def registered() -> Iterator[dict[str, type[Sensitivity]]]:
    """Every measure, in the registry until the end."""
    before = dict(SENSITIVITIES)
    whole, gradient = examples()
    try:
        for code in (whole.split("\npath = ")[0], gradient):
            exec(code, {})
        SENSITIVITIES["spread"] = Spread
        yield dict(SENSITIVITIES)
    finally:
        SENSITIVITIES.clear()
        SENSITIVITIES.update(before)


with registered() as found:
    MEASURES = found
