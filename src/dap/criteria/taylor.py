"""Taylor: weights are kept whose removal would change the loss, to first order."""

from functools import partial

import torch
from torch import nn

from dap.criteria.calibration import Calibration, Scores
from dap.masks.attach import MaskedModel
from dap.method.gradients import domain_gradients
from dap.runtime.outputs import asking


def taylor(model: nn.Module, data: Calibration, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Scores:
    """(g·w)², averaged over the batches of all source domains.

    g is the part of the objective's gradient that flows through a domain's batch, times the number of domains: for ERM
    the gradient of that batch's own loss.
    """
    masked = MaskedModel(model, include, exclude)
    device = next(iter(masked.weights.values())).device
    objective = data.objective_on(device)
    network = partial(masked, **asking(model, objective.needs))
    scores = Scores({name: torch.zeros_like(w, dtype=torch.float32) for name, w in masked.weights.items()})
    for batches in data.stream(device):
        _, parts = domain_gradients(network, objective, masked.weights, batches, data.engine.ranks)
        for part in parts:
            for name, gradient in part.items():
                if gradient is not None:
                    change = len(batches) * gradient.float() * masked.weights[name]
                    scores[name].addcmul_(change, change, value=1 / (len(batches) * data.batches))
    return scores
