"""Domain sensitivity: how much the domains disagree on the sign of a weight's gradient."""

import torch
from torch import Tensor

from dap.errors import DapError


def sensitivity(positive: Tensor, negative: Tensor, domains: int) -> Tensor:
    """S = −(2/(K(K−1))) Σ_{m<n} a_mn (eq. 7) with a_mn = sign(g_m)·sign(g_n) (eq. 6), from the signs' counts.

    With P = Σ sign(g_k) and Q = Σ |sign(g_k)| the pair sum is (P² − Q)/2: no pair is ever formed.
    S is −1 where all domains agree, and reaches its maximum where they split evenly.
    """
    if domains > 11:  # P² no longer fits a byte
        positive, negative = positive.short(), negative.short()
    net, active = positive - negative, positive + negative  # P, Q
    return active.sub_(net.mul_(net)).float().div_(domains * (domains - 1))


class SignCount:
    """Counts, gate by gate, the domains whose gradient is positive and those whose gradient is negative."""

    def __init__(self, gates: int, domains: int, device: torch.device):
        if domains > torch.iinfo(torch.int8).max:
            raise DapError(f"sensitivity takes at most 127 domains, not {domains}: join some of them")
        self.domains = domains
        self.positive = torch.zeros(gates, dtype=torch.int8, device=device)
        self.negative = torch.zeros(gates, dtype=torch.int8, device=device)

    def add(self, piece: slice, gradient: Tensor) -> None:
        """One domain's gradient for a slice of the gates: ∂L/∂m will do, its factor w cancels as sign(w)² = 1."""
        # A bool is a byte of 0 or 1: adding it as int8 needs no conversion pass.
        self.positive[piece] += torch.gt(gradient, 0).view(torch.int8)
        self.negative[piece] += torch.lt(gradient, 0).view(torch.int8)

    def sensitivity(self, piece: slice = slice(None)) -> Tensor:
        """S of the domains that were added, for a slice of the gates."""
        return sensitivity(self.positive[piece], self.negative[piece], self.domains)
