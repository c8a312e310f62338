"""Meta-learning for domain generalisation (Li et al., 2018), first order."""

from collections.abc import Callable, Mapping
from itertools import cycle

import numpy as np
from torch import Tensor

from dap.errors import DapError
from dap.objectives.objective import Gradient, Gradients, Objective, Weights, risks
from dap.runtime.batches import Batches
from dap.runtime.outputs import Outputs
from dap.specs.ranges import Choice, LogUniform


class Mldg(Objective):
    """A step that lowers the risk of meta-train domains also where it would lead: on meta-test domains after it.

    Its loss on given batches, as in mask learning, is ERM's; what differs is the gradient of a training step.
    """

    separable = True
    search = {"weight": LogUniform(-1, 1), "meta_test": Choice((1, 2))}

    def __init__(self, weight: float = 1.0, meta_test: int = 2):
        super().__init__()
        if meta_test < 1:
            raise DapError(f"meta_test is {meta_test}; MLDG needs at least 1 domain to test on")
        self.weight, self.meta_test = weight, meta_test

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        return risks(outputs, labels).mean()

    def gradient(
        self,
        gradient_of: Callable[[Weights, Batches], Gradient],
        weights: Weights,
        batches: Batches,
        advance: Callable[[Weights, Gradients], Weights],
        rng: np.random.Generator,
    ) -> Gradient:
        """(1/K) Σ ∇risk_i(θ) + β ∇risk_j(θ after one step on i), over meta-train i, each with a meta-test j."""
        if len(batches) < 2:
            raise DapError("MLDG needs at least two source domains, one of them to test on")
        order = [list(batches)[index] for index in rng.permutation(len(batches))]
        tests = min(self.meta_test, len(order) - 1)
        loss, total = 0.0, dict[str, Tensor | None].fromkeys(weights)
        for train, test in zip(order[:-tests], cycle(order[-tests:]), strict=False):
            inner = gradient_of(weights, {train: batches[train]})
            outer = gradient_of(advance(weights, inner.weights), {test: batches[test]})
            loss += inner.loss + self.weight * outer.loss
            _add(total, inner.weights, 1 / len(batches))
            _add(total, outer.weights, self.weight / len(batches))
        return Gradient(loss / len(batches), total, {})


def _add(total: Gradients, part: Gradients, share: float) -> None:
    for name, gradient in part.items():
        if gradient is not None:
            before = total[name]
            total[name] = share * gradient if before is None else before.add_(gradient, alpha=share)
