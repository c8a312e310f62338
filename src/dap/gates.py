"""The relaxed Bernoulli gate: its law, its derivative, and where each gate acts.

Everything is in closed form and works on one flat vector with a logit per gate. A gate acts on one weight or on a
whole channel: `GateLayout` alone knows which, so that one pruner serves every granularity.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, ...]

# Elements worked on at a time: what a step reads and writes between two passes over memory stays in the cache.
_CHUNK = 2**20
_CHUNK_ACCELERATOR = 2**24


def relax(effective: Tensor, uniform: Tensor, temperature: float, out: Tensor | None = None) -> Tensor:
    """m = σ((λ̃ + logit u)/τ): the two-class Gumbel-softmax, whose two Gumbel variables differ by logit u.

    `effective` (λ̃) and `uniform` (u) have one shape; so has the result. `out` may be `uniform` itself.
    """
    out = torch.logit(uniform, out=out)
    return out.add_(effective).div_(temperature).sigmoid_()


def relax_gradient(gradient: Tensor, gate: Tensor, temperature: float) -> Tensor:
    """∂L/∂λ̃ = ∂L/∂m · m(1−m)/τ, written over `gradient` (∂L/∂m). `gate` is the soft m, also for a hard forward pass."""
    slope = torch.addcmul(gate, gate, gate, value=-1)
    return gradient.mul_(slope.mul_(1 / temperature))


def by_weight(shape: Shape) -> Shape:
    """One gate per weight."""
    return shape


def by_output_channel(shape: Shape) -> Shape:
    """One gate per row of a matrix or kernel of a convolution."""
    return (shape[0], *[1] * (len(shape) - 1))


class Site(NamedTuple):
    """Where a slice of the flat vector acts: gates `start` to `stop`, shaped to broadcast against the weight."""

    name: str
    start: int
    stop: int
    shape: Shape
    fan: int  # weights per gate


class GateLayout:
    """Which gates act on which weights.

    >>> layout = GateLayout({"weight": torch.ones(4, 3)}, by_output_channel)
    >>> layout.gates, layout.total
    (4, 12)
    """

    def __init__(self, weights: Mapping[str, Tensor], granularity: Callable[[Shape], Shape] = by_weight):
        self.weights = weights
        self.sites: list[Site] = []
        for name, weight in weights.items():
            shape = granularity(tuple(weight.shape))
            start = self.sites[-1].stop if self.sites else 0
            gates = math.prod(shape)
            self.sites.append(Site(name, start, start + gates, shape, weight.numel() // gates))
        self.gates = self.sites[-1].stop
        self.total = sum(weight.numel() for weight in weights.values())  # N
        # Slices that cover the flat vector, each small enough for the cache, with their number of weights per gate.
        self.pieces = list(self._cut(next(iter(weights.values())).device.type))

    def _cut(self, device: str) -> Iterator[tuple[slice, int]]:
        size = _CHUNK if device == "cpu" else _CHUNK_ACCELERATOR
        runs: list[list[int]] = []  # neighbouring sites of one fan are cut as one
        for site in self.sites:
            if runs and runs[-1][2] == site.fan:
                runs[-1][1] = site.stop
            else:
                runs.append([site.start, site.stop, site.fan])
        for start, stop, fan in runs:
            for at in range(start, stop, size):
                yield slice(at, min(at + size, stop)), fan

    def masked_weights(self, gates: Tensor) -> dict[str, Tensor]:
        """w·m for every weight, in the weight's own dtype and memory format."""
        return {
            site.name: torch.mul(
                self.weights[site.name], gates[site.start : site.stop].view(site.shape).to(self.weights[site.name])
            )
            for site in self.sites
        }

    def gate_gradients(self, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[slice, Tensor]]:
        """∂L/∂m = Σ w·∂L/∂(w·m) over the weights of each gate: slice by slice of the flat vector."""
        for site in self.sites:
            gradient = gradients[site.name]
            if gradient is None:  # this weight took no part in the forward pass
                part = torch.zeros(site.stop - site.start, device=self.weights[site.name].device)
            else:
                part = (gradient.float() * self.weights[site.name]).sum_to_size(site.shape).reshape(-1)
            yield slice(site.start, site.stop), part

    def expand(self, flat: Tensor) -> dict[str, Tensor]:
        """A value per gate as a value per weight, by the weight's name; views where each gate has one weight."""
        return {
            site.name: flat[site.start : site.stop].view(site.shape).expand(self.weights[site.name].shape)
            for site in self.sites
        }
