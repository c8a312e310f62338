"""How much faster ResNet-50 is when channel-level DAP has left half of its FLOPs.

    python benchmarks/latency.py

Masks of channels are learnt for a few steps, on PACS at 64 pixels with ImageNet weights if they are there
($DAP_SHARED), else on noise. Channels are cut to half of the FLOPs and removed, and both networks run as ONNX files in
ONNX Runtime at 224 pixels, 2 threads, in turn: `speedup_batch_1` and `speedup_batch_8` are the dense network's median
time over the pruned one's, `torch_speedup_batch_1` the same in PyTorch. `flops_ratio` and `parameter_ratio` are pruned
over dense, `max_abs_difference` is that of logits between the network with zeros in place and the one without the
channels. The last line is one JSON object.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dap
from dap.export import compare_latencies, export_onnx
from dap.masks.attach import bake
from dap.method.learn import learn_masks
from dap.models import ModelCard, create_classifier
from dap.runtime.sources import Source
from dap.structure import find_channels, remove_channels
from pacs import SHARED, pacs

DOMAINS = ("art_painting", "photo", "sketch")
FLOPS, THREADS = 0.5, 2


def compare(backbone: str = "resnet50", pixels: int = 224, steps: int = 40, repeats: int = 20) -> dict[str, float]:
    torch.manual_seed(0)
    model, sources = _model(backbone), _sources()
    images = torch.randn(4, 3, pixels, pixels)
    channels = find_channels(model, images[:1])
    config = dap.PruneConfig(steps=steps, target_sparsity=0.6, batch_size=8)
    path = learn_masks(model, sources, config, granularity=channels)
    masks = path.masks_at(1 - FLOPS)
    masked, small = bake(model, masks).eval(), remove_channels(model, masks).eval()
    with torch.no_grad():
        difference = (masked(images) - small(images)).abs().max().item()
    found = {
        "flops_ratio": channels.flops(channels.kept(masks)),
        "parameter_ratio": _parameters(small) / _parameters(model),
        "max_abs_difference": difference,
    }
    card = ModelCard(tuple("abcdefg"), pixels, (0.5,) * 3, (0.5,) * 3)
    with tempfile.TemporaryDirectory() as folder:
        files = {"dense": Path(folder, "dense.onnx"), "small": Path(folder, "small.onnx")}
        export_onnx(model, files["dense"], card, images[:2])
        export_onnx(small, files["small"], card, images[:2])
        for batch in (1, 8):
            times = compare_latencies(
                files, tuple(images.shape[1:]), batch=batch, threads=THREADS, repeats=repeats // batch + 3
            )
            found[f"speedup_batch_{batch}"] = times["dense"] / times["small"]
            print(f"batch {batch}: dense {times['dense']:.3f} s, pruned {times['small']:.3f} s", flush=True)
    modules = {"dense": model, "small": small}
    times = compare_latencies(modules, tuple(images.shape[1:]), threads=THREADS, repeats=repeats // 2)
    return found | {"torch_speedup_batch_1": times["dense"] / times["small"]}


def _parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _model(backbone: str) -> nn.Module:
    """With the ImageNet weights at hand, which are those of the original ResNet-50, and a fresh head."""
    weights = SHARED / "weights" / f"{backbone}_v1.safetensors"
    if not weights.is_file():
        return create_classifier(backbone, 7).eval()
    return create_classifier(backbone, 7, weights, stride_in_1x1=True).eval()


def _sources() -> dict[str, Source]:
    if (SHARED / "data" / "PACS").is_dir():
        images = pacs(64)
        return {domain: images[domain] for domain in DOMAINS}
    print("no PACS images: masks are learnt on noise")
    return {domain: TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(7, (64,))) for domain in DOMAINS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    print(json.dumps(compare(repeats=parser.parse_args().repeats)))
