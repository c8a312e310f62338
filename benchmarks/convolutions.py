"""Weight gradients of convolutions on small maps: our matrix product beside oneDNN, as ratios measured in one run.

    python benchmarks/convolutions.py

First single layers, by the number of positions (images × height × width of the outputs) for an output channel: where
the ratio falls below 1 the rule of `dap.runtime.convolutions` must stop. Then whole steps of dense training and of mask
learning. Medians of interleaved repeats on one thread, with channels last, as the loader gives pictures. The last line
is one JSON object: how many times as long a step takes without it.
"""

import argparse
import copy
import json
from contextlib import nullcontext
from unittest.mock import patch

import torch
from torch import Tensor

import dap
import dap.method.gradients
from dap.config import TrainConfig
from dap.models import create_classifier
from dap.runtime.convolutions import weight_gradient
from dap.training.step import Trainer
from step import DOMAINS, calibrated, medians

# Of ResNets at 64, 112 and 224 pixels: channels in, out, kernel, stride, pixels
LAYERS = (
    (512, 512, 3, 1, 2),
    (512, 512, 3, 1, 4),
    (512, 512, 3, 1, 7),
    (256, 512, 3, 2, 4),
    (256, 256, 3, 1, 4),
    (256, 256, 3, 1, 7),
    (256, 256, 3, 1, 14),
    (128, 128, 3, 1, 8),
    (64, 64, 3, 1, 16),
    (2048, 512, 1, 1, 2),
    (512, 2048, 1, 1, 2),
    (1024, 256, 1, 1, 4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for images in (16, 32):
        for layer in LAYERS:
            compare_layer(images, *layer, repeats=args.repeats)
    results = {}
    for name, pixels, images in (
        ("resnet18", 64, 16),
        ("resnet18", 64, 32),
        ("resnet18", 112, 16),
        ("resnet50", 64, 16),
    ):
        results |= compare_steps(name, pixels, images, args.repeats)
    print(json.dumps(results))


def compare_layer(images: int, inwards: int, out: int, kernel: int, stride: int, pixels: int, repeats: int) -> float:
    def picture(*shape: int) -> Tensor:
        return torch.randn(shape).contiguous(memory_format=torch.channels_last)

    padding = [kernel // 2] * 2
    inputs, weight = picture(images, inwards, pixels, pixels), picture(out, inwards, kernel, kernel)
    gradient = picture(images, out, -(-pixels // stride), -(-pixels // stride))
    options = (None, [stride] * 2, padding, [1, 1], False, [0, 0], 1, [False, True, False])
    seconds = medians(
        {
            "oneDNN": lambda: torch.ops.aten.convolution_backward(gradient, inputs, weight, *options),
            "ours": lambda: weight_gradient(gradient, inputs, weight, [stride] * 2, padding),
        },
        repeats,
    )
    ratio, positions = seconds["oneDNN"] / seconds["ours"], gradient.numel() / out**2
    print(
        f"{images} images, {inwards} → {out} channels, kernel {kernel}, stride {stride}, {pixels} pixels: "
        f"{1000 * seconds['oneDNN']:.1f} → {1000 * seconds['ours']:.1f} ms, ratio {ratio:.1f} "
        f"at {positions:.2f} positions a channel"
    )
    return ratio


def compare_steps(name: str, pixels: int, images: int, repeats: int) -> dict[str, float]:
    shape = (images, 3, pixels, pixels)
    batches = {
        domain: (torch.randn(shape).contiguous(memory_format=torch.channels_last), torch.randint(7, (images,)))
        for domain in DOMAINS
    }
    model = calibrated(create_classifier(name, 7), batches)
    trainer = Trainer(copy.deepcopy(model), dap.objectives.Erm(), TrainConfig(steps=10_000, learning_rate=1e-6))
    pruner = dap.Pruner(model, dap.PruneConfig(steps=10_000, f_update=1))
    kinds = {"training": lambda: trainer.step(batches), "mask learning": lambda: pruner.step(batches)}

    def without(step):
        with patch.object(dap.method.gradients, "fast_backward", lambda weights: nullcontext()):
            step()

    results = {}
    for kind, step in kinds.items():
        seconds = medians({"with": step, "without": lambda step=step: without(step)}, repeats)
        ratio = seconds["without"] / seconds["with"]
        print(
            f"{name} at {pixels} pixels, 3 × {images} images, {kind}: "
            f"{seconds['without']:.2f} → {seconds['with']:.2f} s a step, ratio {ratio:.2f}"
        )
        results[f"{name}, {pixels} pixels, {images} images, {kind}"] = round(ratio, 3)
    return results


if __name__ == "__main__":
    main()
