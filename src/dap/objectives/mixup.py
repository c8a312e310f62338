"""Mixup of images from different domains (Yan et al., 2020)."""

from collections.abc import Mapping

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from dap.objectives.objective import Objective, risks
from dap.runtime.batches import Batches, check_batch, check_labels
from dap.runtime.outputs import Outputs
from dap.specs.ranges import LogUniform


class Mixup(Objective):
    """The mean risk on images mixed from two domains; on unmixed ones, as in mask learning, it is ERM's loss."""

    separable = True
    search = {"alpha": LogUniform(-1, 1)}

    def __init__(self, alpha: float = 0.2):
        super().__init__()
        self.alpha = alpha
        self.classes = 0

    def prepare(self, model: nn.Module, domains: tuple[str, ...], classes: int) -> None:
        self.classes = classes

    def mix(self, batches: Batches, rng: np.random.Generator) -> Batches:
        """One mix for each pair of neighbours in a random circle of the domains."""
        order = [list(batches)[index] for index in rng.permutation(len(batches))]
        for domain, (inputs, labels) in batches.items():
            check_batch(domain, inputs, labels)
            check_labels(domain, labels, self.classes)
        mixed = {}
        for one, other in zip(order, order[1:] + order[:1], strict=True):
            (x, y), (x2, y2) = batches[one], batches[other]
            n, share = min(len(x), len(x2)), float(rng.beta(self.alpha, self.alpha))
            ours, theirs = (F.one_hot(labels[:n].long(), self.classes) for labels in (y, y2))
            targets = share * ours + (1 - share) * theirs
            mixed[f"{one} + {other}"] = share * x[:n] + (1 - share) * x2[:n], targets
        return mixed

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        return risks(outputs, labels).mean()
