"""The relaxed Bernoulli gate: its law, its derivative, and where each gate acts.

Everything is in closed form and works on one flat vector with a logit per gate. A gate acts on one weight or on a
whole channel: `GateLayout` alone knows which, so that one pruner serves every granularity.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dap.masks.allocation import global_masks, keep_count, keep_groups, too_sparse
from dap.masks.masks import Masks

Shape = tuple[int, ...]
# Slices of the flat vector, and what a gate in each stands for: a number of weights, or for each gate a price.
Pieces = Sequence[tuple[slice, int | Tensor]]

# Elements worked on at a time: what a step reads and writes between two passes over memory stays in the cache.
_CHUNK = 2**20
_CHUNK_ACCELERATOR = 2**24


def relax(effective: Tensor, uniform: Tensor, temperature: float, out: Tensor | None = None) -> Tensor:
    """m = σ((λ̃ + logit u)/τ) (eq. 2): the two-class Gumbel-softmax, whose two Gumbel variables differ by logit u.

    `effective` (λ̃) and `uniform` (u) have one shape; so has the result. `out` may be `uniform` itself.
    """
    out = torch.logit(uniform, out=out)
    return out.add_(effective).div_(temperature).sigmoid_()


def relax_gradient(gradient: Tensor, gate: Tensor, temperature: float) -> Tensor:
    """∂L/∂λ̃ = ∂L/∂m · m(1−m)/τ, written over `gradient` (∂L/∂m). `gate` is the soft m, also for a hard forward pass."""
    slope = torch.addcmul(gate, gate, gate, value=-1)
    return gradient.mul_(slope.mul_(1 / temperature))


def weigh(keep: Tensor, fan: int | Tensor) -> tuple[Tensor, Tensor]:
    """Σ fan·σ and Σ fan·σ(1−σ), with σ = `keep`: `fan` is what a gate stands for, its weights or a price of its own."""
    if isinstance(fan, int):
        mass = keep.sum()
        return mass * fan, (mass - keep.dot(keep)) * fan
    return keep.dot(fan), torch.addcmul(keep, keep, keep, value=-1).dot(fan)


def sparsity_loss(share: float, wanted: float) -> tuple[float, float]:
    """(share − wanted)² (eq. 12), and its derivative with respect to `share`.

    The paper's shares are densities: mean σ(λ̃) and 1 − s. The loss of the sparsities, 1 − mean σ(λ̃) and s, is the same.
    """
    deviation = share - wanted
    return deviation**2, 2 * deviation


def pull(gradient: Tensor, keep: Tensor, fan: int | Tensor, scale: float) -> None:
    """Add scale · fan · σ(1−σ) to `gradient`, with σ = `keep`: the chain rule from the expected density to λ̃."""
    if isinstance(fan, int):
        gradient.add_(keep, alpha=scale * fan).addcmul_(keep, keep, value=-scale * fan)
    else:
        gradient.addcmul_(keep.addcmul(keep, keep, value=-1), fan, value=scale)


class Layout(Protocol):
    """Which gates act on what, as one flat vector with a logit per gate. Weights and channels have one each."""

    @property
    def weights(self) -> Mapping[str, Tensor]: ...  # what gates multiply, by name
    @property
    def gates(self) -> int: ...  # how many
    @property
    def total(self) -> float: ...  # what a sparsity is a share of: the number of weights, or all FLOPs
    @property
    def slices(self) -> Sequence[slice]: ...  # of the flat vector, each small enough for the cache
    def priced(self, logits: Tensor) -> tuple[Pieces, float]: ...
    def masked_weights(self, gates: Tensor) -> dict[str, Tensor]: ...
    def gate_gradients(self, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[slice, Tensor]]: ...
    def weight_gradients(self, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[slice, Tensor]]: ...
    def sparsity(self, logits: Tensor) -> float: ...
    def threshold(self, logits: Tensor, allow_empty: bool = False) -> Masks: ...
    def cut(self, ranking: Tensor, sparsity: float, allow_empty: bool = False) -> Masks: ...
    def expand(self, flat: Tensor) -> dict[str, Tensor]: ...


class Granularity(Protocol):
    """What a gate acts on: one weight, one row of a weight, one channel of the network."""

    channels: ClassVar[bool]  # whether whole coupled channels are learnt, and sparsities are shares of FLOPs

    def layout(self, model: nn.Module, weights: Mapping[str, Tensor]) -> Layout: ...


@dataclass(frozen=True)
class ByShape:
    """Gates within each weight: `shape` maps a weight's shape to that of its gates, which broadcasts against it."""

    shape: Callable[[Shape], Shape]
    channels: ClassVar[bool] = False

    def layout(self, model: nn.Module, weights: Mapping[str, Tensor]) -> "GateLayout":
        return GateLayout(weights, self)


by_weight = ByShape(lambda shape: shape)
by_output_channel = ByShape(lambda shape: (shape[0], *[1] * (len(shape) - 1)))  # one gate per row


def keep_best(kept: Tensor, scores: Tensor, groups: Iterable[slice]) -> Tensor:
    """`kept`, and of each group that would be empty the gate with the highest score."""
    kept = kept.clone()
    for group in groups:
        if not kept[group].any():
            kept[group.start + int(scores[group].argmax())] = True
    return kept


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

    def __init__(self, weights: Mapping[str, Tensor], granularity: ByShape = by_weight):
        self.weights = weights
        self.sites: list[Site] = []
        for name, weight in weights.items():
            shape = granularity.shape(tuple(weight.shape))
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

    @property
    def slices(self) -> list[slice]:
        return [piece for piece, _ in self.pieces]

    def priced(self, logits: Tensor) -> tuple[Pieces, float]:
        """What is expected to be kept, Σ price·σ(λ̃) + rest: pieces, and the rest."""
        return self.pieces, 0.0

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
        return self._sums(gradients, lambda name, gradient: gradient.float() * self.weights[name])

    def weight_gradients(self, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[slice, Tensor]]:
        """Σ ∂L/∂(w·m) over the weights of each gate: slice by slice of the flat vector."""
        return self._sums(gradients, lambda _, gradient: gradient.float())

    def _sums(
        self, gradients: Mapping[str, Tensor | None], term: Callable[[str, Tensor], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        for site in self.sites:
            gradient = gradients[site.name]
            if gradient is None:  # this weight took no part in the forward pass
                part = torch.zeros(site.stop - site.start, device=self.weights[site.name].device)
            else:
                part = term(site.name, gradient).sum_to_size(site.shape).reshape(-1)
            yield slice(site.start, site.stop), part

    def sparsity(self, logits: Tensor) -> float:
        """The share of weights that `threshold(logits)` cuts."""
        kept = torch.zeros((), dtype=torch.int64, device=logits.device)
        for site in self.sites:
            counts = [torch.count_nonzero(part > 0) for part in logits[site.start : site.stop].split(_CHUNK)]
            kept += torch.stack(counts).sum().clamp(min=1) * site.fan
        return 1 - kept.item() / self.total

    def threshold(self, logits: Tensor, allow_empty: bool = False) -> Masks:
        """Masks of the gates above 0 (eq. 4). A layer without one keeps its highest, unless it may be empty."""
        slices = [slice(site.start, site.stop) for site in self.sites]
        return self.masks(logits > 0 if allow_empty else keep_best(logits > 0, logits, slices))

    def masks(self, kept: Tensor) -> Masks:
        return Masks(self.expand(kept))

    def cut(self, ranking: Tensor, sparsity: float, allow_empty: bool = False) -> Masks:
        """Masks that keep the gates that rank highest: at exactly this sparsity, or as close above as gates allow."""
        if self.gates == self.total:
            return global_masks(self.expand(ranking), sparsity, allow_empty=allow_empty)
        keep, fans = keep_count(self.total, sparsity), {site.name: site.fan for site in self.sites}
        if not allow_empty and keep < sum(fans.values()):
            raise too_sparse(sparsity, "a gate")
        groups = {site.name: ranking[site.start : site.stop] for site in self.sites}
        return self.masks(torch.cat([*keep_groups(groups, fans, keep, allow_empty).values()]))

    def expand(self, flat: Tensor) -> dict[str, Tensor]:
        """A value per gate as a value per weight, by the weight's name; views where each gate has one weight."""
        return {
            site.name: flat[site.start : site.stop].view(site.shape).expand(self.weights[site.name].shape)
            for site in self.sites
        }
