"""IoR: channels are kept that matter to the mean risk, or to how much the domains' risks differ.

A reconstruction: the original's formula is not public. What is known is that it adds the variance of the domains' risks
to Taylor's importance.
"""

import torch
from torch import nn

from dap.criteria.calibration import Calibration, Scores
from dap.masks.attach import MaskedModel
from dap.method.gates import GateLayout, by_output_channel
from dap.method.gradients import task_gradient
from dap.objectives import Erm


def ior(model: nn.Module, data: Calibration, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Scores:
    """Σ over batches of (∂R̄/∂m)² + (∂V/∂m)², where m is a gate on an output channel, 1 in the dense model.

    R̄ is the mean of the domains' risks, V their variance. One score per channel, the same for all its weights.
    """
    masked = MaskedModel(model, include, exclude)
    layout = GateLayout(masked.weights, by_output_channel)
    device = next(iter(masked.weights.values())).device
    scores = torch.zeros(layout.gates, device=device)
    for batches in data.stream(device):
        risks, slopes = [], []
        for domain, batch in batches.items():
            found = task_gradient(masked, Erm(), masked.weights, {domain: batch}, data.engine.ranks)
            risks.append(found.loss)
            slopes.append(torch.cat([part for _, part in layout.gate_gradients(found.weights)]))  # ∂R_k/∂m
        slope = torch.stack(slopes)
        deviations = slope.new_tensor(risks)
        deviations -= deviations.mean()
        of_mean = slope.mean(0)
        of_variance = 2 * (deviations @ slope) / len(risks)  # V = mean (R_k − R̄)²
        scores += of_mean.square() + of_variance.square()
    return Scores(layout.expand(scores / data.batches))
