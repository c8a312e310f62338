"""DSS: channels are kept whose activation looks alike in all source domains.

The original's released code also looks at target images; this one never does.
"""

import math
from itertools import combinations

import torch
from torch import Tensor, nn

from dap.criteria.calibration import Calibration, Scores
from dap.errors import DapError
from dap.masks.attach import every_weight, looking_at, maskable_weights
from dap.masks.observation import Product, observe, order_of_use


def dss(model: nn.Module, data: Calibration, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Scores:
    """Mean over pairs of domains of the cosine similarity, over positions, of a channel's mean activation maps.

    A channel's activation is the convolution's output. The first convolution has infinite scores, which keep it whole,
    and so have layers without positions: the head, and any other linear layer.
    """
    if len(data.sources) < 2:
        raise DapError("DSS compares the source domains, and there is only 1: give at least two")
    weights = {name: weight.detach() for name, weight in maskable_weights(model, include, exclude).items()}
    device = next(iter(weights.values())).device
    maps: dict[str, dict[str, Tensor]] = {domain: {} for domain in data.sources}  # domain → weight → [channels, …]
    first: str | None = None
    for batches in data.stream(device):
        if first is None:
            inputs, _ = next(iter(batches.values()))
            used = order_of_use(model, every_weight(model), inputs)
            first = next((name for name in used if model.get_parameter(name).ndim > 2), "")
        for domain, (inputs, _) in batches.items():

            def add(product: Product, sums: dict[str, Tensor] = maps[domain]) -> None:
                if product.convolution is None or product.convolution["transposed"]:
                    return
                part = product.output.detach().float().sum(0)
                total = sums.setdefault(product.name, torch.zeros_like(part))
                if total.shape != part.shape:
                    raise DapError("DSS compares activation maps: give all domains images of one size")
                total += part

            with looking_at(model), observe(weights, add):
                model(inputs.clone())
    for sums in maps.values():
        data.engine.ranks.sum_(sums.values())
    if not {name for sums in maps.values() for name in sums} - {first}:
        raise DapError("DSS scores the convolutions after the first, and the model has none: choose another method")
    scores = Scores()
    for name, weight in weights.items():
        found = [sums[name] for sums in maps.values() if name in sums]
        if len({part.shape for part in found}) > 1:
            raise DapError("DSS compares activation maps: give all domains images of one size")
        if name == first or not found or found[0][0].numel() == 1:  # one place is no map to compare
            scores[name] = torch.full((1,), math.inf, device=device).expand(weight.shape)
        else:
            flat = [part.flatten(1) for part in found]
            cosines = [torch.cosine_similarity(one, other, dim=1) for one, other in combinations(flat, 2)]
            per_channel = torch.stack(cosines).mean(0)
            scores[name] = per_channel.view(-1, *[1] * (weight.ndim - 1)).expand(weight.shape)
    return scores
