"""What a measure of domain sensitivity is: the only thing that the pruner knows of one."""

from collections.abc import Collection
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor


class Cost(NamedTuple):
    """What an update costs per gate."""

    passes: int  # element-wise operations over all gates
    working: int  # bytes that are freed after the update
    kept: int  # bytes that are remembered until the next update, in addition to the average S̄


class Sensitivity(Protocol):
    """Compares the domains' gradients gate by gate. An instance lives for one update.

    The pruner calls `add` with every domain's gradient, then `score` for S, and keeps the moving average
    S̄ ← β·S̄ + (1−β)·S. S̄ then shapes the logit (`shape_logit`) or the task's gradient (`shape_gradient`).

    `memory` holds what earlier updates remembered, by name, and is filled at the first update. Each tensor has one
    number per gate. Names and types depend on the names of the domains only. The pruner saves the tensors with its
    state and drops the changes of a step that fails.
    """

    gradients: ClassVar[Literal["gate", "weight"]] = "gate"  # ∂L/∂m, or ∂L/∂(w·m) summed over the weights of a gate
    range: ClassVar[tuple[float, float]]  # of S, and so of S̄

    def __init__(self, gates: int, domains: Collection[str], device: torch.device, memory: dict[str, Tensor]) -> None:
        """Make the working tensors on `device`, which is `meta` where only shapes are wanted."""

    def add(self, domain: str, piece: slice, gradient: Tensor) -> None:
        """See one domain's gradient for a slice of the gates. `gradient` must not be changed."""
        ...

    def score(self, piece: slice) -> Tensor:
        """S of the domains that were added, for a slice of the gates, as float32."""
        ...

    @staticmethod
    def cost(domains: int) -> Cost:
        """What an update with so many domains costs."""
        ...

    @staticmethod
    def precision(beta: float) -> torch.dtype:
        """The type that S̄ is kept in."""
        return torch.float32

    @staticmethod
    def shape_logit(logit: Tensor, change: Tensor, alpha: float) -> None:
        """S̄ has changed by `change`: update λ̃ = λ − α·S̄ in place. Must be linear in `change`."""
        logit.sub_(change, alpha=alpha)

    @staticmethod
    def shape_gradient(gradient: Tensor, average: Tensor, alpha: float) -> None:
        """Change the task's gradient ∂L/∂λ in place, at every step, where S̄ is `average`. By default it stays."""
