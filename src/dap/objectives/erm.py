"""Empirical risk minimisation."""

from collections.abc import Mapping

from torch import Tensor

from dap.objectives.objective import Objective, risks
from dap.runtime.outputs import Outputs


class Erm(Objective):
    """The mean over domains of the cross-entropy."""

    separable = True

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        """The mean over domains of the mean cross-entropy of a domain's images (eq. 11)."""
        return risks(outputs, labels).mean()
