"""Scores to masks: which of the scored weights are kept.

Every allocation maps scores, by weight, and a sparsity to masks that cut this share of all N weights: the lowest scores
in the places it allows. Among equals the first are kept. No layer is emptied unless `allow_empty` asks for it, and a
layer whose scores are all infinite is kept whole: the others then carry its share.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce

import torch
from torch import Tensor

from dap.errors import DapError
from dap.masks.masks import Masks

_SAMPLE = 2**16  # numbers that tell about where a threshold is

Scores = Mapping[str, Tensor]  # by a weight's name, in its shape; the higher, the sooner it is kept


def keep_count(total: int, sparsity: float) -> int:
    """How many of `total` weights a sparsity leaves: N − round(s·N)."""
    if not 0 <= sparsity <= 1:
        raise DapError(f"sparsity is {sparsity}; it is a share between 0 and 1")
    return total - round(sparsity * total)


def keep_top(scores: Tensor, keep: int) -> Tensor:
    """A mask of exactly the `keep` largest of a flat vector; among equals, those that come first."""
    (mask,) = _keep_top([scores], keep)
    return mask


def global_masks(scores: Scores, sparsity: float, *, allow_empty: bool = False) -> Masks:
    """The lowest scores are cut, wherever they are.

    >>> global_masks({"weight": torch.tensor([[3.0, 1.0], [2.0, 0.0]])}, 0.5)["weight"]
    tensor([[ True, False],
            [ True, False]])
    """
    keep, whole, rest = _budget(scores, sparsity, allow_empty)
    precision = reduce(torch.promote_types, (score.dtype for score in rest.values()))
    kept: dict[str, Tensor] = {}
    while rest:
        parts = [score.reshape(-1).to(precision) for score in rest.values()]
        masks = dict(zip(rest, _keep_top(parts, keep - len(kept)), strict=True))
        emptied = [] if allow_empty else [name for name, mask in masks.items() if not mask.any()]
        if not emptied:
            return _masks(scores, whole, kept | masks)
        for name in emptied:  # each keeps its best, and the others share what is left
            kept[name] = keep_top(rest.pop(name).reshape(-1), 1)
    return _masks(scores, whole, kept)


def per_layer(scores: Scores, sparsity: float, *, allow_empty: bool = False) -> Masks:
    """Every layer is cut by the same share: of n weights it keeps (1 − s)·n, rounded down or up.

    A layer of which less than one weight would be left keeps one; the others then share what remains.

    >>> per_layer({"a": torch.tensor([4.0, 3.0]), "b": torch.tensor([2.0, 1.0])}, 0.5)["b"]
    tensor([ True, False])
    """
    return _in_proportion(scores, sparsity, allow_empty, lambda score: score.numel())


def erdos_renyi_kernel(scores: Scores, sparsity: float, *, allow_empty: bool = False) -> Masks:
    """A layer's density follows the sum of its dimensions over their product: small layers are cut less.

    A layer keeps its share of the weights rounded down or up. The share is at least one weight and at most the layer.

    >>> scores = {"small": torch.rand(4, 4), "large": torch.rand(40, 40)}
    >>> masks = erdos_renyi_kernel(scores, 0.5)
    >>> masks.by_layer()["small"], masks.kept
    (0.0, 808)
    """
    # Density ∝ Σ dims / Π dims, so the number of weights kept ∝ Σ dims.
    return _in_proportion(scores, sparsity, allow_empty, lambda score: sum(score.shape))


def channels(scores: Scores, sparsity: float, *, allow_empty: bool = False) -> Masks:
    """Whole output channels: of every layer with C of them the round(s·C) that score lowest, weight for weight.

    >>> channels({"weight": torch.tensor([[1.0, 5.0], [2.0, 2.0]])}, 0.5)["weight"]
    tensor([[ True,  True],
            [False, False]])
    """
    whole, rest = _divide(scores)
    masks = {}
    for name, score in rest.items():
        keep = max(keep_count(len(score), sparsity), int(not allow_empty))
        masks[name] = _widen(keep_top(_by_channel(score), keep), score)
    return _masks(scores, whole, masks)


def global_channels(scores: Scores, sparsity: float, *, allow_empty: bool = False) -> Masks:
    """Whole output channels, the lowest wherever they are, just as many as it takes to cut the share of the weights.

    >>> scores = {"a": torch.tensor([[3.0, 3.0], [1.0, 1.0]]), "b": torch.tensor([[4.0], [2.0]])}
    >>> {name: mask[:, 0].tolist() for name, mask in global_channels(scores, 0.5).items()}
    {'a': [True, False], 'b': [True, False]}
    """
    keep, whole, rest = _budget(scores, sparsity, True)
    ranking = {name: _by_channel(score) for name, score in rest.items()}
    sizes = {name: score.numel() // len(score) for name, score in rest.items()}
    if not allow_empty and keep < sum(sizes.values()):
        raise too_sparse(sparsity, "a channel")
    kept = keep_groups(ranking, sizes, keep, allow_empty)
    return _masks(scores, whole, {name: _widen(part, rest[name]) for name, part in kept.items()})


def keep_groups(ranking: Scores, sizes: Mapping[str, int], keep: int, allow_empty: bool) -> dict[str, Tensor]:
    """Of groups of weights, by layer a flat vector of scores and the size of each, the highest that `keep` is room for.

    Each layer's best is among them unless it is `allow_empty`.
    """
    parts = list(ranking.values())
    if not allow_empty:
        parts = [ranks.index_fill(0, torch.tensor(_best(ranks), device=ranks.device), math.inf) for ranks in parts]
    groups = [len(ranks) for ranks in parts]
    fans = torch.repeat_interleave(
        torch.tensor([sizes[name] for name in ranking], device="cpu"), torch.tensor(groups, device="cpu")
    )
    flat = torch.cat(parts)
    return dict(zip(ranking, keep_top_weighted(flat, fans.to(flat.device), keep).split(groups), strict=True))


def keep_top_weighted(scores: Tensor, sizes: Tensor, keep: int) -> Tensor:
    """The largest of scores that each stand for `sizes` weights: from the top, as long as at most `keep` are kept."""
    if scores.isnan().any():
        raise _not_sound()
    order = torch.argsort(scores, descending=True, stable=True)
    mask = torch.zeros_like(scores, dtype=torch.bool)
    mask[order[sizes[order].cumsum(0) <= keep]] = True
    return mask


def n_of_m(n: int, m: int) -> Callable[[Scores], Masks]:
    """Of each `m` neighbours along the inputs the `n` best: the pattern sets the sparsity.

    A remainder of fewer than `m` inputs keeps at most `n` too, so that the pattern holds everywhere.

    >>> n_of_m(2, 4)({"weight": torch.tensor([[1.0, 4.0, 3.0, 2.0, 9.0]])})["weight"]
    tensor([[False,  True,  True, False,  True]])
    """
    if not 0 < n <= m:
        raise DapError(f"the pattern {n}:{m} keeps {n} of {m} weights: it must keep at least one, and no more than all")

    def allocate(scores: Scores) -> Masks:
        whole, rest = _divide(scores)
        return _masks(scores, whole, {name: _best_of_groups(score, n, m) for name, score in rest.items()})

    return allocate


# Those that take a sparsity; `n_of_m` makes others.
ALLOCATIONS: dict[str, Callable[..., Masks]] = {
    "global": global_masks,
    "per_layer": per_layer,
    "erk": erdos_renyi_kernel,
    "channels": channels,
    "global_channels": global_channels,
}


def apportion(
    parts: Mapping[str, float], caps: Mapping[str, int], total: Fraction, rounded: int, least: int = 0
) -> dict[str, int]:
    """Whole numbers that add up to `rounded`, which is `total` rounded down or up, by the largest-remainder rule.

    The shares add up to `total`. They are the parts times one common factor, raised to `least` or lowered to their cap
    where they are out of these bounds. Each number is its share rounded down or up; those with the largest fractions
    are rounded up, the first among equals. The arithmetic is exact.

    >>> apportion({"a": 1, "b": 1, "c": 4}, {"a": 9, "b": 9, "c": 4}, Fraction(9), 9)
    {'a': 3, 'b': 2, 'c': 4}
    """
    shares = _bounded_shares(parts, caps, total, least)
    counts = {name: math.floor(share) for name, share in shares.items()}
    by_fraction = sorted(shares, key=lambda name: counts[name] - shares[name])
    for name in by_fraction[: rounded - sum(counts.values())]:
        counts[name] += 1
    return counts


# ---- parts


def _divide(scores: Scores) -> tuple[set[str], dict[str, Tensor]]:
    """The names of the layers that are kept whole, and the scores of the rest."""
    whole = {name for name, score in scores.items() if score[(0,) * score.ndim].isposinf() and score.isposinf().all()}
    rest = {name: score.detach() for name, score in scores.items() if name not in whole}
    if not rest:
        raise DapError("there is no layer to cut: all are kept whole")
    return whole, rest


def _budget(scores: Scores, sparsity: float, allow_empty: bool) -> tuple[int, set[str], dict[str, Tensor]]:
    """How many weights the layers that may be cut keep; and those kept whole, and the rest."""
    whole, rest = _divide(scores)
    keep = keep_count(sum(score.numel() for score in scores.values()), sparsity)
    keep -= sum(scores[name].numel() for name in whole)
    if keep < 0:
        raise DapError(f"sparsity {sparsity} is out of reach: {', '.join(sorted(whole)[:3])} … are kept whole")
    if not allow_empty and keep < len(rest):
        raise too_sparse(sparsity, "a weight")
    return keep, whole, rest


def _best(scores: Tensor) -> int:
    """The place of the largest."""
    place = int(scores.argmax())  # of a NaN, if there is one
    if scores[place].isnan():
        raise _not_sound()
    return place


def too_sparse(sparsity: float, what: str) -> DapError:
    return DapError(f"sparsity {sparsity} would not leave every layer {what}: lower it, or pass allow_empty=True")


def _not_sound() -> DapError:
    return DapError("the scores hold NaN: the run that made them is not sound")


def _masks(scores: Scores, whole: set[str], kept: Mapping[str, Tensor]) -> Masks:
    """In the order of the scores."""
    return Masks(
        {
            name: torch.ones_like(score, dtype=torch.bool) if name in whole else kept[name].view(score.shape)
            for name, score in scores.items()
        }
    )


def _keep_top(parts: Sequence[Tensor], keep: int) -> list[Tensor]:
    """Masks of exactly the `keep` largest numbers of all flat parts; among equals, those that come first."""
    if keep == 0:
        return [torch.zeros_like(part, dtype=torch.bool) for part in parts]
    threshold = _smallest_kept(parts, keep)
    masks = [part > threshold for part in parts]
    missing = keep - sum(int(mask.count_nonzero()) for mask in masks)
    for part, mask in zip(parts, masks, strict=True):
        if missing:
            ties = torch.nonzero(part == threshold).squeeze(1)[:missing]
            mask[ties] = True
            missing -= len(ties)
    return masks


def _smallest_kept(parts: Sequence[Tensor], keep: int) -> Tensor:
    """The smallest of the `keep` largest: a selection, not a sort, and from a few of the numbers alone.

    A sample says about where it is. Numbers above that range are only counted, and it is found among those inside.
    """
    if any(part.max().isnan() for part in parts):
        raise _not_sound()
    total = sum(part.numel() for part in parts)
    sample = torch.cat([part[:: max(1, total // _SAMPLE)] for part in parts]).sort().values
    place, margin = round(len(sample) * (1 - keep / total)), 1 + len(sample) // 50
    low = sample[place - margin] if place >= margin else sample.new_tensor(-math.inf)
    high = sample[place + margin] if place + margin < len(sample) else sample.new_tensor(math.inf)
    above = sum(int((part > high).count_nonzero()) for part in parts)
    inside = torch.cat([part[(part >= low) & (part <= high)] for part in parts])
    if not above < keep <= above + len(inside):  # the sample was not like the rest
        above, inside = 0, torch.cat(list(parts))
    return inside.kthvalue(above + len(inside) - keep + 1).values


def _in_proportion(scores: Scores, sparsity: float, allow_empty: bool, part: Callable[[Tensor], int]) -> Masks:
    """Each layer keeps a number of weights in proportion to its part."""
    keep, whole, rest = _budget(scores, sparsity, allow_empty)
    parts, sizes = ({name: count(score) for name, score in rest.items()} for count in (part, Tensor.numel))
    # What is left before rounding. Shares of the rounded number could be off by more than a weight in a large layer.
    left = sum(sizes.values()) - Fraction(float(sparsity)) * sum(score.numel() for score in scores.values())
    counts = apportion(parts, sizes, left, keep, int(not allow_empty))
    return _masks(scores, whole, {name: keep_top(rest[name].reshape(-1), count) for name, count in counts.items()})


def _bounded_shares(
    parts: Mapping[str, float], caps: Mapping[str, int], total: Fraction, least: int
) -> dict[str, Fraction]:
    """The parts times a factor, each within its bounds, that add up to `total` or come as close as the bounds allow."""
    exact = {name: Fraction(part) for name, part in parts.items()}

    def shares(factor: Fraction) -> dict[str, Fraction]:
        return {name: min(max(part * factor, Fraction(least)), Fraction(caps[name])) for name, part in exact.items()}

    def filled(factor: Fraction) -> Fraction:
        return sum(shares(factor).values(), Fraction(0))

    # The sum grows with the factor, along a straight line between two factors at which a share meets a bound.
    corners = sorted({Fraction(0)} | {bound / part for name, part in exact.items() for bound in (least, caps[name])})
    place = bisect_left(corners, total, key=filled)
    if place == 0:
        return shares(corners[0])
    low, high = corners[place - 1], corners[place]
    return shares(low + (high - low) * (total - filled(low)) / (filled(high) - filled(low)))


def _by_channel(score: Tensor) -> Tensor:
    """The mean score of each output channel's weights; exact where they have one score for all."""
    return score.double().reshape(len(score), -1).mean(1)


def _widen(kept: Tensor, score: Tensor) -> Tensor:
    return kept.view(-1, *[1] * (score.ndim - 1)).expand(score.shape).contiguous()


def _best_of_groups(score: Tensor, n: int, m: int) -> Tensor:
    if score.isnan().any():
        raise _not_sound()
    along = score.movedim(1, -1) if score.ndim > 1 else score  # [out, in, …] → [out, …, in]
    inputs = along.shape[-1]
    padded = torch.nn.functional.pad(along, (0, -inputs % m), value=-math.inf)
    groups = padded.reshape(-1, m)
    order = torch.argsort(groups, dim=1, descending=True, stable=True)
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, order[:, :n], True)
    mask = mask.view(*along.shape[:-1], -1)[..., :inputs]
    return (mask.movedim(-1, 1) if score.ndim > 1 else mask).contiguous()
