"""Coupled channels: which numbers of a network stand and fall together, and what they cost.

One flat vector has an entry for every channel that can be removed; those of a group are neighbours. A channel is what a
layer puts out and others take in, through sums and depthwise layers: in a residual network all blocks of a stage share
theirs. An attention head is a channel too.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.masks.masks import Masks
from dap.method.gates import Pieces, keep_best

# Kernels work on blocks of so many channels: in a wide group a number between costs as much as the next block.
_BLOCK, _WIDE = 8, 64


class Place(NamedTuple):
    """Where channels are in a parameter: `channels` has for every index along `dim` its channel, −1 where none."""

    name: str
    dim: int
    channels: Tensor


class Cost(NamedTuple):
    """Multiplications of one operation, in proportion to what is kept along each of `sides`, of one or two."""

    multiplications: int
    sides: tuple[Tensor, ...]  # as `Place.channels`


@dataclass(frozen=True)
class Channels:
    """The channels of a model that can be removed, by `find_channels`."""

    groups: Mapping[str, slice]  # of the flat vector, by the weight that makes them
    places: tuple[Place, ...]  # everything that goes with a channel
    gates: tuple[Place, ...]  # rows, scales and shifts that a channel comes from: times m, it is m times the channel
    costs: tuple[Cost, ...]
    shapes: Mapping[str, tuple[int, ...]]  # of the parameters in `places`

    channels: ClassVar[bool] = True  # as a granularity: whole coupled channels

    def layout(self, model: nn.Module, weights: Mapping[str, Tensor]) -> "ChannelLayout":
        return ChannelLayout(model, self)

    @property
    def total(self) -> int:
        return max(group.stop for group in self.groups.values())

    def flops(self, kept: Tensor) -> float:
        """The share of the model's multiplications that is left."""
        shares = torch.cat([kept.detach().cpu().double(), torch.ones(1, dtype=torch.float64, device="cpu")])
        left = 0.0
        for multiplications, sides in self.costs:
            part = float(multiplications)
            for side in sides:
                part *= shares[side].mean().item()
            left += part
        return left / sum(cost.multiplications for cost in self.costs)

    def prices(self, keep: Tensor) -> Tensor:
        """∂ flops / ∂ keep: what a channel costs beside the others, each of which is there with probability `keep`."""
        shares = torch.cat([keep.detach().cpu().double(), torch.ones(1, dtype=torch.float64, device="cpu")])
        prices = torch.zeros_like(shares)
        for multiplications, sides in self.costs:
            means = [shares[side].mean().item() for side in sides]
            for place, side in enumerate(sides):
                others = math.prod(means[:place] + means[place + 1 :])
                each = torch.full((len(side),), multiplications * others / len(side), dtype=torch.float64, device="cpu")
                prices.index_add_(0, side % (self.total + 1), each)
        return prices[:-1] / sum(cost.multiplications for cost in self.costs)

    def masks(self, kept: Tensor) -> Masks:
        """Of every parameter that a channel has a part in: all of it goes with the channel."""
        known = torch.cat([kept.detach().cpu().bool(), torch.ones(1, dtype=torch.bool, device="cpu")])
        masks = {name: torch.ones(shape, dtype=torch.bool, device="cpu") for name, shape in self.shapes.items()}
        for name, dim, channels in self.places:
            masks[name] &= _along(known[channels], dim, len(self.shapes[name]))
        return Masks(masks)

    def kept(self, masks: Masks) -> Tensor:
        """The channels that `masks` keep: those of which some row is left."""
        kept = torch.zeros(self.total + 1, dtype=torch.bool, device="cpu")
        for name, dim, channels in self.places:
            if dim == 0:
                mask = masks[name]
                kept[channels[mask.reshape(len(mask), -1).any(1)]] = True
        return kept[:-1]

    # ---- what to keep

    def cut(self, scores: Tensor, removed: float, *, uniform: bool = False, allow_empty: bool = False) -> Tensor:
        """Keep the best channels such that at least `removed` of the multiplications go, and hardly more.

        The lowest scores go, wherever they are, or with `uniform` the same share of every group. A group keeps all its
        channels if their scores are infinite, and one at least unless it may be empty.
        """
        if not 0 <= removed < 1:
            raise DapError(f"the share of FLOPs to cut is {removed}; it is a share between 0 and 1")
        scores = scores.detach().cpu().double()
        if scores.isnan().any():
            raise DapError("the scores hold NaN: the run that made them is not sound")
        keep = self._cutter(scores, uniform, least=int(not allow_empty))
        low, high = 0, self.total  # at `high` enough is gone
        if self.flops(keep(high)) > 1 - removed:
            least = 1 - self.flops(keep(high))
            raise DapError(f"{removed:.0%} of the FLOPs cannot be cut: without what is kept whole, {least:.1%} can")
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.flops(keep(middle)) > 1 - removed else (low, middle)
        return keep(high)

    def _cutter(self, scores: Tensor, uniform: bool, least: int) -> Callable[[int], Tensor]:
        """What is kept at each of `total` degrees: every degree keeps less than the one before, or the same."""
        ranks = torch.argsort(torch.argsort(scores, stable=True), stable=True)
        best = {name: torch.argsort(scores[group], descending=True, stable=True) for name, group in self.groups.items()}

        def keep(degree: int) -> Tensor:
            kept = scores.isposinf()
            for name, group in self.groups.items():
                size = group.stop - group.start
                count = size - size * degree // self.total if uniform else int((ranks[group] >= degree).sum())
                block = _BLOCK if size >= _WIDE else 1
                kept[group.start + best[name][: max(least, -(-count // block) * block)]] = True
            return kept

        return keep

    def scores_of(self, scores: Mapping[str, Tensor]) -> Tensor:
        """A score for every channel from those of single weights: the mean over the rows that it comes from."""
        sums = torch.zeros(self.total + 1, dtype=torch.float64, device="cpu")
        counts = torch.zeros_like(sums)
        for name, dim, channels in self.places:
            if dim == 0 and name in scores:
                rows = scores[name].detach().cpu().double().flatten(1).mean(1)
                sums.index_add_(0, channels % (self.total + 1), rows)
                counts.index_add_(0, channels % (self.total + 1), torch.ones_like(rows))
        return (sums / counts.clamp(min=1))[:-1]


class ChannelLayout:
    """Gates on whole channels, for `Pruner`: as `GateLayout`, whose sparsity is the share of FLOPs that is gone."""

    def __init__(self, model: nn.Module, channels: Channels):
        self.channels, self.gates = channels, channels.total
        parameters = dict(model.named_parameters())
        self.weights = {place.name: parameters[place.name].detach() for place in channels.gates}
        self.device = next(iter(self.weights.values())).device
        self.sites = [(place.name, (place.channels % (self.gates + 1)).to(self.device)) for place in channels.gates]
        self.slices = [slice(0, self.gates)]
        self.total = 1.0  # all FLOPs

    def priced(self, logits: Tensor) -> tuple[Pieces, float]:
        """The expected FLOPs as `GateLayout.priced`: a product of two sides of an operation is taken as its tangent."""
        keep = logits.sigmoid()
        prices = self.channels.prices(keep)
        rest = self.channels.flops(keep) - float(prices @ keep.cpu().double())
        return [(self.slices[0], prices.float().to(self.device))], rest

    def masked_weights(self, gates: Tensor) -> dict[str, Tensor]:
        known = torch.cat([gates, gates.new_ones(1)])
        return {
            name: self.weights[name] * _along(known[channels], 0, self.weights[name].ndim).to(self.weights[name])
            for name, channels in self.sites
        }

    def gate_gradients(self, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[slice, Tensor]]:
        """∂L/∂m = Σ p·∂L/∂(p·m) over all parameters p that a gate multiplies."""
        # In double precision if the weights are.
        return self._sums(gradients, lambda name, gradient: gradient.float() * self.weights[name])

    def weight_gradients(self, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[slice, Tensor]]:
        """Σ ∂L/∂(p·m) over all parameters p that a gate multiplies."""
        return self._sums(gradients, lambda _, gradient: gradient.float())

    def _sums(
        self, gradients: Mapping[str, Tensor | None], term: Callable[[str, Tensor], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        total = torch.zeros(self.gates + 1, device=self.device)
        for name, channels in self.sites:
            if (gradient := gradients[name]) is not None:
                rows = term(name, gradient).reshape(len(gradient), -1).sum(1)
                total.index_add_(0, channels, rows.float())
        yield self.slices[0], total[:-1]

    def sparsity(self, logits: Tensor) -> float:
        """The share of FLOPs that `threshold(logits)` cuts."""
        return 1 - self.channels.flops(keep_best(logits > 0, logits, self.channels.groups.values()))

    def threshold(self, logits: Tensor, allow_empty: bool = False) -> Masks:
        """Masks of the channels above 0. A group without one keeps its highest, unless it may be empty."""
        groups = self.channels.groups.values()
        return self.masks(logits > 0 if allow_empty else keep_best(logits > 0, logits, groups))

    def masks(self, kept: Tensor) -> Masks:
        return self.channels.masks(kept)

    def cut(self, ranking: Tensor, sparsity: float, allow_empty: bool = False) -> Masks:
        return self.channels.masks(self.channels.cut(ranking, sparsity, allow_empty=allow_empty))

    def expand(self, flat: Tensor) -> dict[str, Tensor]:
        """A value per channel as a value per number of the parameters that it multiplies; 1 where there is no gate."""
        known = torch.cat([flat, flat.new_ones(1)])
        return {
            name: _along(known[channels], 0, self.weights[name].ndim).expand(self.weights[name].shape)
            for name, channels in self.sites
        }


def _along(values: Tensor, dim: int, ndim: int) -> Tensor:
    return values.view([-1 if d == dim else 1 for d in range(ndim)])
