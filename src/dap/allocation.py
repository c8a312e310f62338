"""Scores to masks: which of the scored weights are kept."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dap.errors import DapError
from dap.masks import Masks


def keep_count(total: int, sparsity: float) -> int:
    """How many of `total` weights a sparsity leaves: N − round(s·N)."""
    if not 0 <= sparsity <= 1:
        raise DapError(f"sparsity is {sparsity}; it is a share between 0 and 1")
    return total - round(sparsity * total)


def keep_top(scores: Tensor, keep: int) -> Tensor:
    """A mask of exactly the `keep` largest of a flat vector; among equals, those that come first."""
    if keep == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(scores.numel() - keep + 1).values  # a selection, not a sort
    if threshold.isnan() or scores.isnan().any():
        raise DapError("the scores hold NaN: the run that made them is not sound")
    mask = scores > threshold
    ties = torch.nonzero(scores == threshold).squeeze(1)
    mask[ties[: keep - int(mask.count_nonzero())]] = True
    return mask


def keep_top_weighted(scores: Tensor, sizes: Tensor, keep: int) -> Tensor:
    """The same for scores that each stand for `sizes` weights: from the top, as long as at most `keep` are kept."""
    order = torch.argsort(scores, descending=True, stable=True)
    mask = torch.zeros_like(scores, dtype=torch.bool)
    mask[order[sizes[order].cumsum(0) <= keep]] = True
    return mask


def global_masks(scores: Mapping[str, Tensor], sparsity: float) -> Masks:
    """Exactly the share `sparsity` of all weights is cut, wherever the lowest scores are.

    >>> global_masks({"weight": torch.tensor([[3.0, 1.0], [2.0, 0.0]])}, 0.5)["weight"]
    tensor([[ True, False],
            [ True, False]])
    """
    flat = torch.cat([score.reshape(-1) for score in scores.values()])
    kept = keep_top(flat, keep_count(flat.numel(), sparsity)).split([score.numel() for score in scores.values()])
    return Masks({name: part.view(scores[name].shape) for name, part in zip(scores, kept, strict=True)})
