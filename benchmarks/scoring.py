"""Global magnitude masks of ResNet-50 at 80 %, against torch.nn.utils.prune in the same run.

    python benchmarks/scoring.py

`over_torch_prune` is our time over torch's, both from the model to its masks; `peak_copies` the most memory that was in
use beyond the model itself, in copies of the masked weights. The last line is one JSON object.
"""

import copy
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import prune

from dap.criteria import magnitude
from dap.masks import Masks
from dap.masks.allocation import global_masks
from dap.masks.attach import maskable_weights
from dap.models import create_classifier

SPARSITY, REPEATS = 0.8, 5


def ours(model: nn.Module) -> Masks:
    return global_masks(magnitude(model), SPARSITY)


def torchs(model: nn.Module) -> nn.Module:
    layers = [(module, "weight") for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    prune.global_unstructured(layers, prune.L1Unstructured, amount=SPARSITY)
    return model


def seconds(work: Callable[[nn.Module], object], models: list[nn.Module]) -> float:
    times = []
    for model in models:
        start = time.perf_counter()
        work(model)
        times.append(time.perf_counter() - start)
    return min(times)


def peak_copies(backbone: str, whose: str) -> float:
    """Copies of the weights at the peak of the work, in a process of its own, whose allocator has nothing in store."""
    arguments = [sys.executable, __file__, "--peak", backbone, whose]
    return float(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def measure_peak(backbone: str, whose: str) -> float:
    model = build(backbone)
    size = sum(weight.numel() * weight.element_size() for weight in maskable_weights(model).values())
    work = {"ours": ours, "torch": torchs}[whose]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    result = work(model)
    peak = _status("VmHWM")
    del result
    return (peak - before) / size


def _status(field: str) -> int:
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def build(backbone: str) -> nn.Module:
    torch.manual_seed(0)
    return create_classifier(backbone, 7, None)


def compare(backbone: str, repeats: int = REPEATS) -> dict[str, float]:
    model = build(backbone)
    masks = global_masks(magnitude(model), SPARSITY, allow_empty=True)  # torch empties layers
    theirs = torchs(copy.deepcopy(model))
    same = all(
        torch.equal(masks[f"{name}.weight"], module.get_buffer("weight_mask").bool())
        for name, module in theirs.named_modules()
        if f"{name}.weight" in masks
    )
    del theirs
    mine = seconds(ours, [model] * repeats)
    torch_ = seconds(torchs, [copy.deepcopy(model) for _ in range(repeats)])
    print(f"{masks.total:,} weights: ours {mine:.3f} s, torch {torch_:.3f} s, the same masks: {same}")
    return {
        "over_torch_prune": round(mine / torch_, 3),
        "peak_copies": round(peak_copies(backbone, "ours"), 2),
        "torch_peak_copies": round(peak_copies(backbone, "torch"), 2),
        "same_masks": float(same),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print(measure_peak(*sys.argv[2:]))
    else:
        print(json.dumps(compare("resnet50")))
