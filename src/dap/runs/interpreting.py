"""What the masks of a pruning tell, beside its numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dap.evaluation.activation_maps import NoMaps, activation_maps
from dap.evaluation.interpretation import against_magnitude, by_layer, logit_histogram, read_learnt
from dap.evaluation.pixels import InPixels
from dap.runs.subjects import Subjects
from dap.runtime.files import replacing
from dap.runtime.sources import take
from dap.specs.file_names import MAPS, STATE
from dap.specs.methods import BY_FLOPS, METHODS
from dap.specs.run_files import own, read_spec
from dap.specs.runs import PruneSpec

_PICTURES = 4  # of each domain


def interpret(
    run: Path, subjects: Subjects, folder: Path | None, told: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Logits, layers, magnitude, and where the models look."""
    spec = read_spec(run) if run.is_dir() else None
    found: dict[str, Any] = {"by_sparsity": {}}
    learnt = None
    if isinstance(spec, PruneSpec) and METHODS[spec.method].learns and spec.allocation not in BY_FLOPS:
        learnt = read_learnt(own(run, STATE))
        found["logits"] = logit_histogram(learnt.logits)
    dense = subjects.dense
    for number, (name, masks) in enumerate(subjects.masks.items(), 1):
        assert dense is not None
        layers = by_layer(dense, masks, learnt)
        row: dict[str, Any] = {"against_magnitude": against_magnitude(dense, masks), "layers": layers}
        found["by_sparsity"][name] = row
        told("interpretation", number, len(subjects.masks))
    if folder is not None:
        found["pictures"] = draw_maps(subjects, folder / MAPS)
    return found


def draw_maps(subjects: Subjects, file: Path) -> list[str] | None:
    """Images, and where each model looks for their class; the names of the columns, None without convolutions."""
    inputs, labels = [], []
    unseen = {name: parts["80 %"] for name, parts in subjects.sources.targets.items()}
    domains = {**subjects.sources.held_out, **unseen}
    for data in domains.values():
        images, targets = take(data, torch.arange(min(_PICTURES, len(data)), device="cpu"))
        inputs.append(images)
        labels.append(targets)
    images, targets = torch.cat(inputs), torch.cat(labels)
    first = next(iter(subjects.models.values()))
    wrapped = InPixels(first, subjects.card.mean, subjects.card.std)
    device = wrapped.mean.device
    pixels = wrapped.pixels(images.to(device)).cpu()
    columns = [pixels]
    for model in subjects.models.values():
        try:
            maps = activation_maps(model, images.to(device), targets.to(device)).cpu()
        except NoMaps:
            return None
        columns.append(_heat(pixels, maps))
    grid = torch.cat([torch.cat(list(column), 1) for column in columns], 2)  # [3, rows, columns]
    picture = Image.fromarray((255 * grid.permute(1, 2, 0)).round().byte().numpy().astype(np.uint8))
    with replacing(file) as temporary:
        picture.save(temporary, "PNG")
    return ["image", *subjects.models]


def _heat(pixels: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """Grey images with warm colours where the map is high."""
    grey = pixels.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    warm = torch.stack([torch.ones_like(maps), 1 - maps, torch.zeros_like(maps)], 1)
    share = 0.7 * maps[:, None]
    return (1 - share) * grey + share * warm
