"""Ranges from which hyper-parameters are drawn."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LogUniform:
    """`base` to a power drawn uniformly between `low` and `high`.

    >>> round(LogUniform(-1, 1).draw(np.random.default_rng(0)), 3)
    1.879
    """

    low: float
    high: float
    base: float = 10.0
    whole: bool = False  # rounded down to a whole number

    def draw(self, rng: np.random.Generator) -> Any:
        value = self.base ** rng.uniform(self.low, self.high)
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Choice:
    """One of the given values."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


Range = LogUniform | Choice
