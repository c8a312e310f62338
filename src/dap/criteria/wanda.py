"""Wanda-style: weights are kept that are large and see large inputs."""

import torch
from torch import Tensor, nn

from dap.criteria.calibration import Calibration, Scores
from dap.masks.attach import looking_at, maskable_weights
from dap.masks.observation import Product, observe
from dap.runtime.user_models import running


def wanda(model: nn.Module, data: Calibration, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Scores:
    """|w|·‖x‖, where x is what the weight meets at all positions of an image, root mean square over images.

    For a convolution that is the input channel as seen by the weight's place in the kernel. Forward passes alone.
    """
    weights = {name: weight.detach() for name, weight in maskable_weights(model, include, exclude).items()}
    device = next(iter(weights.values())).device
    squares = {name: torch.zeros(weight.shape, device=device) for name, weight in weights.items()}

    def add(product: Product) -> None:
        squares[product.name][product.rows] += _squares(product, weights[product.name])

    images = 0
    for batches in data.stream(device):
        for inputs, _ in batches.values():
            images += len(inputs)
            with looking_at(model), running(model, inputs), observe(weights, add):
                model(inputs.clone())
    images = data.engine.ranks.totals(images)[0]
    data.engine.ranks.sum_(squares.values())
    return Scores({name: weights[name].abs().float() * (total / images).sqrt() for name, total in squares.items()})


def _squares(product: Product, weight: Tensor) -> Tensor:
    """Σ x² for every weight, or shaped so that it broadcasts."""
    x = product.inputs.detach().float()
    if product.convolution is None:
        return x.square().sum(0)
    groups = product.convolution["groups"]
    if product.convolution["transposed"]:  # [in, out / groups, …]: each input meets all of its kernel
        return x.square().sum((0, *range(2, x.ndim))).view(-1, *[1] * (weight.ndim - 1))
    # The gradient of Σ y with respect to the kernel is Σ x at each of its places; one output per group will do.
    kernel = torch.zeros(groups, *weight.shape[1:], device=x.device)
    ones = torch.ones(len(x), groups, *product.output.shape[2:], device=x.device)
    options = [product.convolution[key] for key in ("stride", "padding", "dilation", "transposed", "output_padding")]
    _, sums, _ = torch.ops.aten.convolution_backward(
        ones, x.square(), kernel, None, *options, groups, [False, True, False]
    )
    return sums.repeat_interleave(len(weight) // groups, 0)
