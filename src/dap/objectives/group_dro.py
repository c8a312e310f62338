"""Group distributionally robust optimisation (Sagawa et al., 2020)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.objectives.objective import Objective, risks
from dap.runtime.outputs import Outputs
from dap.specs.ranges import LogUniform


class GroupDro(Objective):
    """Σ q_k · risk_k, where q follows the worst domains: q_k ← q_k · exp(η · risk_k), renormalised."""

    search = {"step_size": LogUniform(-3, -1)}
    q: Tensor

    def __init__(self, step_size: float = 0.01):
        super().__init__()
        self.step_size = step_size
        self.domains: tuple[str, ...] = ()

    def prepare(self, model: nn.Module, domains: tuple[str, ...], classes: int) -> None:
        self.domains = domains
        self.register_buffer("q", torch.full((len(domains),), 1 / len(domains)))

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        if tuple(outputs) != self.domains:
            raise DapError(
                f"GroupDRO has weights for domains {self.domains}, not {tuple(outputs)}: "
                f"train with it first, or load the state saved with the dense model"
            )
        losses = risks(outputs, labels)
        if self.step is not None and losses.isfinite().all():  # else the step fails, and q must not
            grown = self.q * (self.step_size * losses.detach()).exp()
            self.q.copy_(grown / grown.sum())
        return self.q @ losses
