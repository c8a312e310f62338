"""What the corruptions of 100 images cost a second model, once the first has had them made.

    python benchmarks/corruptions.py

`second_model_over_forward` is its time on all 15 × 5 corruptions of 100 images at 112 pixels over that of its plain
forward passes on as many images in memory; `first_over_second` says what making them costs. The last line is one JSON
object. Random pictures and weights: neither changes the time.
"""

import argparse
import json
import tempfile
import time

import torch
from torch.utils.data import TensorDataset

from dap.evaluation.corruptions import CORRUPTIONS, SEVERITIES, on_corruptions
from dap.evaluation.pixels import InPixels
from dap.models import create_classifier


def pictures(images: int, pixels: int) -> TensorDataset:
    """Smooth ones, as photographs are."""
    torch.manual_seed(0)
    coarse = torch.rand(images, 3, 8, 8)
    fine = torch.nn.functional.interpolate(coarse, (pixels, pixels), mode="bicubic").clamp(0, 1)
    return TensorDataset(fine, torch.randint(7, (images,)))


def model(backbone: str) -> InPixels:
    return InPixels(create_classifier(backbone, 7, None).eval(), (0.0,) * 3, (1.0,) * 3)


@torch.no_grad()
def forward(wrapped: InPixels, data: TensorDataset, times: int) -> float:
    inputs = data.tensors[0].contiguous(memory_format=torch.channels_last)  # as pictures are kept, and faster
    wrapped(inputs)  # warm
    start = time.perf_counter()
    for _ in range(times):
        wrapped(inputs)
    return time.perf_counter() - start


def compare(backbone: str, images: int = 100, pixels: int = 112, severities: tuple[int, ...] = SEVERITIES) -> dict:
    data = pictures(images, pixels)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        on_corruptions({"first": model(backbone)}, {"all": data}, severities=severities, folder=folder)
        first = time.perf_counter() - start
        second = model(backbone)
        plain = forward(second, data, len(CORRUPTIONS) * len(severities))
        start = time.perf_counter()
        on_corruptions({"second": second}, {"all": data}, severities=severities, folder=folder)
        taken = time.perf_counter() - start
    print(f"first model {first:.1f} s, second {taken:.1f} s, plain forward passes {plain:.1f} s")
    return {"second_model_over_forward": round(taken / plain, 3), "first_over_second": round(first / taken, 2)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet18")
    print(json.dumps(compare(parser.parse_args().backbone)))
