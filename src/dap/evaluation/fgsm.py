"""FGSM: one step of size ε along the sign of the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from dap.evaluation.attacks import ascend, check_epsilon


@dataclass(frozen=True)
class FGSM:
    """The fast gradient sign method in the L∞ ball of radius `epsilon`."""

    epsilon: float
    together: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    def __call__(self, model: nn.Module, pixels: Tensor, labels: Tensor, places: Sequence[int] = ()) -> Tensor:
        return ascend(model, pixels, pixels, labels, self.epsilon, self.epsilon)
