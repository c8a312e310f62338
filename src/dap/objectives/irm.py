"""Invariant risk minimisation (Arjovsky et al., 2019)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dap.errors import DapError
from dap.objectives.objective import Objective, risks
from dap.runtime.outputs import Outputs
from dap.specs.ranges import LogUniform


class Irm(Objective):
    """Mean risk + λ · mean penalty: the classifier on top should be optimal in every domain at once.

    The penalty is the squared gradient of a domain's risk with respect to a scale on its logits, estimated without bias
    as the product of the gradients on the even and the odd half of the batch.
    """

    search = {"weight": LogUniform(-1, 5), "anneal": LogUniform(0, 4, whole=True)}

    def __init__(self, weight: float = 100.0, anneal: int = 500):
        super().__init__()
        self.weight, self.anneal = weight, anneal

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        annealing = self.step is not None and self.step <= self.anneal
        penalties = [_penalty(outputs[domain].logits.float(), labels[domain]) for domain in outputs]
        return risks(outputs, labels).mean() + (1.0 if annealing else self.weight) * torch.stack(penalties).mean()

    def restarts(self, step: int) -> bool:
        # The gradients jump with λ: Adam's moments of before would mislead.
        return step == self.anneal + 1


def _penalty(logits: Tensor, labels: Tensor) -> Tensor:
    if len(logits) < 2:
        raise DapError("IRM needs at least two images of each domain in a batch: raise batch_size")
    # d/ds CE(s·z, y) at s = 1 is Σ_c p_c z_c − z_y: no second backward pass.
    own = logits.gather(1, labels[:, None]).squeeze(1)
    slope = (logits.softmax(1) * logits).sum(1) - own
    return slope[::2].mean() * slope[1::2].mean()
