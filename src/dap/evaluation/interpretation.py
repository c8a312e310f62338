"""What mask learning found: sure and unsure weights, layers, and where it disagrees with magnitude."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.masks.allocation import global_masks
from dap.masks.attach import every_weight
from dap.masks.masks import Masks
from dap.runtime.checkpoints import load_state
from dap.runtime.reading import elements, reading, require


@dataclass(frozen=True)
class Learnt:
    """What is left of mask learning, by weight: λ̃, whose sign decides, and the domain sensitivity S̄."""

    logits: dict[str, Tensor]
    sensitivity: dict[str, Tensor] | None  # None: with α = 0 there is none


def read_learnt(checkpoint: str | Path) -> Learnt:
    """From the last checkpoint of mask learning, as a run keeps it in `state.safetensors`.

    Where masks are cut from logits averaged over the last steps, it is those.
    """
    if not Path(checkpoint).is_file():
        raise DapError(f"no {checkpoint}: only mask learning leaves logits")
    tensors, values = load_state(checkpoint, "mask learning")
    with reading(checkpoint, "a checkpoint of mask learning", "prune again"):
        shapes = values["pruner"]["weights"]
        logits = "average" if "pruner.average" in tensors else "effective"
        names = [name for name in (logits, "sensitivity") if f"pruner.{name}" in tensors]
        flat = {name: tensors[f"pruner.{name}"].float() for name in names}
        require(all(vector.shape == (len(flat[logits]),) for vector in flat.values()), "its logits are not vectors")
        sizes = [elements(shape, 2**62) for shape in shapes.values()]
    if len(flat[logits]) != sum(sizes):
        raise DapError(f"{checkpoint} has one logit for several weights: only those of single weights can be shown")
    parts = {
        name: dict(zip(shapes, map(Tensor.reshape, vector.split(sizes), map(tuple, shapes.values())), strict=True))
        for name, vector in flat.items()
    }
    return Learnt(parts[logits], parts.get("sensitivity"))


def logit_histogram(logits: Mapping[str, Tensor], bins: int = 120) -> dict[str, Any]:
    """Counts between edges; the share in the boundary region |λ̃| < 1; the threshold, which is 0."""
    flat = torch.cat([part.flatten() for part in logits.values()])
    counts, edges = np.histogram(flat.numpy(), bins)
    boundary = (flat.abs() < 1).double().mean().item()
    kept = (flat > 0).double().mean().item()
    return {"edges": edges.tolist(), "counts": counts.tolist(), "boundary": boundary, "kept": kept, "threshold": 0.0}


def by_layer(model: nn.Module, masks: Masks, learnt: Learnt | None = None) -> list[dict[str, Any]]:
    """A row for every masked layer, in the model's order; with what mask learning knew of it at its end."""
    weights, masks = _weights(model, masks)
    magnitude = _by_magnitude(weights, masks.sparsity)
    rows = []
    for name, weight in weights.items():
        kept, large = masks[name], magnitude[name]
        row = {
            "layer": name,
            "weights": weight.numel(),
            "sparsity": 1 - kept.double().mean().item(),
            "small_but_kept": (kept & ~large).sum().item(),
            "large_but_pruned": (~kept & large).sum().item(),
        }
        if learnt is not None:
            logits = learnt.logits[name]
            row["keep_probability"] = logits.sigmoid().double().mean().item()
            row["boundary"] = (logits.abs() < 1).double().mean().item()
        if learnt is not None and learnt.sensitivity is not None:
            sensitivity = learnt.sensitivity[name]
            row["sensitivity"] = sensitivity.double().mean().item()
            row["sensitivity_and_magnitude"] = rank_correlation(sensitivity, weight.abs())
        rows.append(row)
    return rows


def against_magnitude(model: nn.Module, masks: Masks) -> dict[str, float]:
    """Where masks disagree with global magnitude at the same sparsity.

    `small_but_kept` is the share of kept weights that magnitude cuts, `large_but_pruned` the share of cut weights that
    it keeps; `by_chance` is what the first would be for masks that know nothing of magnitude.
    """
    weights, masks = _weights(model, masks)
    magnitude = _by_magnitude(weights, masks.sparsity)
    small = sum(int((masks[name] & ~magnitude[name]).sum()) for name in weights)
    large = sum(int((~masks[name] & magnitude[name]).sum()) for name in weights)
    pruned = masks.total - masks.kept
    return {
        "small_but_kept": small / max(masks.kept, 1),
        "large_but_pruned": large / max(pruned, 1),
        "by_chance": masks.sparsity,
    }


def chance_overlap(one: Masks, other: Masks) -> float:
    """What masks that know nothing of each other would have."""
    both = one.kept * other.kept / one.total
    return both / max(one.kept + other.kept - both, 1)


def rank_correlation(one: Tensor, other: Tensor, most: int = 1_000_000) -> float | None:
    """Spearman's, between equally many numbers; of more than `most`, every so manieth. Ties share their mean rank.

    None where there is no order: one number, or all the same.
    """
    from scipy.stats import rankdata

    one, other = one.flatten(), other.flatten()
    every = max(1, len(one) // most)
    first, second = (vector[::every].double().numpy() for vector in (one, other))
    if any(len(vector) < 2 or (vector == vector[0]).all() for vector in (first, second)):
        return None
    ranks = rankdata(first), rankdata(second)
    return float(np.corrcoef(*ranks)[0, 1])


def _weights(model: nn.Module, masks: Masks) -> tuple[dict[str, Tensor], Masks]:
    """The masked weights and their masks; of whole channels, which cut biases and norm layers, too, those of layers."""
    masks.check(model)
    by_channel = any(mask.ndim < 2 for mask in masks.values())
    parameters = every_weight(model) if by_channel else dict(model.named_parameters())
    weights = {name: weight.detach().cpu() for name, weight in parameters.items() if name in masks}
    return weights, masks if len(weights) == len(masks) else Masks({name: masks[name] for name in weights})


def _by_magnitude(weights: Mapping[str, Tensor], sparsity: float) -> Masks:
    return global_masks({name: weight.abs() for name, weight in weights.items()}, sparsity, allow_empty=True)
