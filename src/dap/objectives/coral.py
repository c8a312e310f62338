"""Correlation alignment (Sun and Saenko, 2016)."""

from collections.abc import Mapping

from torch import Tensor

from dap.errors import DapError
from dap.objectives.objective import Objective, pairwise, risks
from dap.runtime.outputs import Outputs
from dap.specs.ranges import LogUniform


class Coral(Objective):
    """Mean risk + γ · mean over pairs of domains of the gaps between their features' means and covariances."""

    needs = "features"
    search = {"weight": LogUniform(-1, 1)}

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        return risks(outputs, labels).mean() + self.weight * pairwise(_gap, outputs)


def _gap(one: Tensor, other: Tensor) -> Tensor:
    means = one.mean(0) - other.mean(0)
    return means.square().mean() + (_covariance(one) - _covariance(other)).square().mean()


def _covariance(features: Tensor) -> Tensor:
    if len(features) < 2:
        raise DapError("CORAL needs at least two images of each domain in a batch: raise batch_size")
    centred = features - features.mean(0)
    return centred.T @ centred / (len(features) - 1)
