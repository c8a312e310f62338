"""How large ResNet-50's file is at 80 % sparsity, and what reading it takes.

    python benchmarks/files.py

`fp32`, `fp16` and `bf16` are bytes of the sparse file over those of the dense one in the same precision;
`load_over_dense` is the time to read the sparse file over that of a plain one, both in fp32. The last line is one JSON
object.
"""

import json
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch

from dap.criteria import random
from dap.masks.allocation import global_masks
from dap.masks.attach import bake
from dap.models import create_classifier, load_sparse, save_sparse

SPARSITY, REPEATS = 0.8, 3
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def compare(backbone: str = "resnet50") -> dict[str, float]:
    model = create_classifier(backbone, 7, None)
    sparse = bake(model, global_masks(random(model), SPARSITY))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "plain.safetensors"), Path(folder, "packed.safetensors")
        for name, precision in PRECISIONS.items():
            tensors = {key: tensor.clone() for key, tensor in sparse.to(precision).state_dict().items()}
            safetensors.torch.save_file(tensors, plain)
            save_sparse(tensors, packed)
            found[name] = packed.stat().st_size / plain.stat().st_size
            again = load_sparse(packed)
            assert all(torch.equal(again[key], tensor) for key, tensor in tensors.items())
            if name == "fp32":
                times = [_seconds(load, file) for load, file in ((load_sparse, packed), (_load_plain, plain))]
                found["load_over_dense"] = times[0] / times[1]
    return found


def _load_plain(file: Path) -> object:
    return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(file).items()}  # off the disk


def _seconds(load, file: Path) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        load(file)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    print(json.dumps(compare()))
