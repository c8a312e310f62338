"""Domain sensitivity: how much the domains disagree on the sign of a weight's gradient."""

from collections.abc import Collection

import torch
from torch import Tensor

from dap.errors import DapError
from dap.method.sensitivities.sensitivity import Cost, Sensitivity


def sensitivity(positive: Tensor, negative: Tensor, domains: int) -> Tensor:
    """S = −(2/(K(K−1))) Σ_{m<n} a_mn (eq. 7) with a_mn = sign(g_m)·sign(g_n) (eq. 6), from the signs' counts.

    With P = Σ sign(g_k) and Q = Σ |sign(g_k)| the pair sum is (P² − Q)/2: no pair is ever formed.
    S is −1 where all domains agree, and reaches its maximum where they split evenly.
    """
    if domains > 11:  # P² no longer fits a byte
        positive, negative = positive.short(), negative.short()
    net, active = positive - negative, positive + negative  # P, Q
    return active.sub_(net.mul_(net)).float().div_(domains * (domains - 1))


class SignAgreement(Sensitivity):
    """The paper's measure: −1 where the signs of all domains' gradients agree, largest where they split evenly.

    It looks at ∂L/∂m: its factor w cancels, as sign(w)² = 1.

    >>> signs = SignAgreement(2, ("art", "photo"), torch.device("cpu"), {})
    >>> signs.add("art", slice(0, 2), torch.tensor([1.0, 1.0]))
    >>> signs.add("photo", slice(0, 2), torch.tensor([2.0, -1.0]))
    >>> signs.score().tolist()
    [-1.0, 1.0]
    """

    range = (-1.0, 1.0)

    def __init__(self, gates: int, domains: Collection[str], device: torch.device, memory: dict[str, Tensor]):
        if len(domains) > torch.iinfo(torch.int8).max:
            raise DapError(f"sensitivity takes at most 127 domains, not {len(domains)}: join some of them")
        self.domains = len(domains)
        self.positive = torch.zeros(gates, dtype=torch.int8, device=device)
        self.negative = torch.zeros(gates, dtype=torch.int8, device=device)

    def add(self, domain: str, piece: slice, gradient: Tensor) -> None:
        # A bool is a byte of 0 or 1: adding it as int8 needs no conversion pass.
        self.positive[piece] += torch.gt(gradient, 0).view(torch.int8)
        self.negative[piece] += torch.lt(gradient, 0).view(torch.int8)

    def score(self, piece: slice = slice(None)) -> Tensor:
        return sensitivity(self.positive[piece], self.negative[piece], self.domains)

    @staticmethod
    def cost(domains: int) -> Cost:
        return Cost(passes=4 * domains + (6 if domains <= 11 else 8), working=2, kept=0)

    @staticmethod
    def precision(beta: float) -> torch.dtype:
        # S̄ moves by (1−β)·S: half precision resolves [−1, 1] to 0.0005, unless S̄ moves by less.
        return torch.float16 if beta <= 0.99 else torch.float32
