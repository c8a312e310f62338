"""Maximum mean discrepancy (Li et al., 2018)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dap.objectives.objective import Objective, pairwise, risks
from dap.runtime.outputs import Outputs
from dap.specs.ranges import LogUniform


class Mmd(Objective):
    """Mean risk + γ · mean over pairs of domains of the discrepancy between their features, with Gaussian kernels."""

    needs = "features"
    search = {"weight": LogUniform(-1, 1)}

    def __init__(self, weight: float = 1.0, bandwidths: Sequence[float] = (1e-3, 1e-2, 1e-1, 1, 1e1, 1e2, 1e3)):
        super().__init__()
        self.weight, self.bandwidths = weight, tuple(bandwidths)

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        return risks(outputs, labels).mean() + self.weight * pairwise(self._gap, outputs)

    def _gap(self, one: Tensor, other: Tensor) -> Tensor:
        # Distances do not change, and small ones keep their digits when ‖a − b‖² is expanded.
        centre = (one.mean(0) + other.mean(0)).detach() / 2
        one, other = one - centre, other - centre
        return self._kernel(one, one) + self._kernel(other, other) - 2 * self._kernel(one, other)

    def _kernel(self, one: Tensor, other: Tensor) -> Tensor:
        """The mean of Σ_γ exp(−γ‖a − b‖²) over all pairs of rows."""
        squares = one.square().sum(1)[:, None] + other.square().sum(1) - 2 * one @ other.T
        squares = squares.clamp_min(1e-30)  # rounding may leave a little below 0
        return torch.stack([(-bandwidth * squares).exp() for bandwidth in self.bandwidths]).sum(0).mean()
