"""Domain sensitivity: how much the domains disagree on the sign of a weight's gradient."""

import torch
from torch import Tensor

from dap.errors import DapError


def sensitivity(positive: Tensor, negative: Tensor, domains: int) -> Tensor:
    """S = −(2/(K(K−1))) Σ_{m<n} sign(g_m)·sign(g_n), from the number of domains of either sign.

    With P = Σ sign(g_k) and Q = Σ |sign(g_k)| the pair sum is (P² − Q)/2: no pair is ever formed.
    S is −1 where all domains agree, and reaches its maximum where they split evenly.
    """
    positive, negative = positive.float(), negative.float()
    net, active = positive - negative, positive + negative  # P, Q
    return (active - net.square()).div_(domains * (domains - 1))


class SignCount:
    """Counts, gate by gate, the domains whose gradient is positive and those whose gradient is negative."""

    def __init__(self, gates: int, device: torch.device):
        self.positive = torch.zeros(gates, dtype=torch.int8, device=device)
        self.negative = torch.zeros(gates, dtype=torch.int8, device=device)
        self.domains = 0

    def add(self, gradient: Tensor) -> None:
        """One more domain. The gate's own gradient ∂L/∂m will do: its factor w cancels, as sign(w)² = 1."""
        if self.domains == torch.iinfo(torch.int8).max:
            raise DapError("sensitivity takes at most 127 domains: join some of them")
        self.domains += 1
        # A bool is a byte of 0 or 1: adding it as int8 needs no conversion pass.
        self.positive += torch.gt(gradient, 0).view(torch.int8)
        self.negative += torch.lt(gradient, 0).view(torch.int8)

    def update(self, average: Tensor, beta: float, pieces: list[tuple[slice, int]]) -> None:
        """S̄ ← β·S̄ + (1−β)·S, in place. `average` may be half precision: it lies in [−1, 1]."""
        for piece, _ in pieces:
            new = sensitivity(self.positive[piece], self.negative[piece], self.domains)
            average[piece] = average[piece].float().lerp_(new, 1 - beta)
