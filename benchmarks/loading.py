"""Augmented images per second: dap's loader beside the usual pipeline, on the same files in one run.

    python benchmarks/loading.py

The usual pipeline decodes each file with PIL and applies DomainBed's train transform from torchvision to it, in a torch
DataLoader with 2 workers. dap's loader has decoded everything before it is measured, as it does once for all trainings.
Both give shuffled batches of 32 and take turns; medians are reported. The last line is one JSON object.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from dap.data import Images, load_suite
from dap.models.torchvision_repair import repair_torchvision
from pacs import SHARED

BATCH = 32
ROUNDS = 5
BATCHES = {112: 25, 224: 15}  # of the usual pipeline per round


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = SHARED / "data" / "PACS"
        if not folder.is_dir():
            folder = synthetic(Path(scratch) / "synthetic")
        result: dict[str, float] = {}
        print(f"images per second from {folder.name}, {torch.get_num_threads()} threads, batches of {BATCH}")
        print(f"{'pixels':>6} {'usual':>8} {'dap':>8} {'ratio':>6}")
        for pixels, name in ((112, ""), (224, "_224")):
            usual, ours = compare(folder, pixels, Path(scratch) / "cache")
            print(f"{pixels:>6} {usual:>8.0f} {ours:>8.0f} {ours / usual:>6.1f}")
            result |= {
                f"over_per_image_pipeline{name}": round(ours / usual, 2),
                f"usual_images_per_second{name}": round(usual),
                f"dap_images_per_second{name}": round(ours),
            }
        print(json.dumps(result))


def compare(folder: Path, pixels: int, cache: Path) -> tuple[float, float]:
    """Images per second of the usual pipeline and of dap, medians of rounds that take turns."""
    domain = sorted(path.name for path in folder.iterdir())[0]
    images = load_suite(folder, pixels=pixels, cache=cache).domains[domain]
    assert isinstance(images, Images)
    usual, ours = usual_batches(folder / domain, pixels), dap_batches(images.augmented())
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        rates[0].append(rate(usual, BATCHES[pixels]))
        rates[1].append(rate(ours, 4 * BATCHES[pixels]))
    return statistics.median(rates[0]), statistics.median(rates[1])


def rate(batches: Iterator[torch.Tensor], count: int) -> float:
    # What a loader's workers prefetched while the other was measured does not count.
    for _ in range(6):
        next(batches)
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * BATCH / (time.perf_counter() - start)


def dap_batches(images: Images) -> Iterator[torch.Tensor]:
    while True:
        yield images.batch(torch.randint(len(images), (BATCH,)))[0]


def usual_batches(folder: Path, pixels: int) -> Iterator[torch.Tensor]:
    repair_torchvision()
    from torchvision import datasets, transforms

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(pixels, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    dataset = datasets.ImageFolder(str(folder), transform)
    # With replacement and without end, as DomainBed draws: an epoch's end would be measured otherwise.
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=1_000_000)
    yield from (batch for batch, _ in DataLoader(dataset, BATCH, sampler=sampler, num_workers=2))


def synthetic(folder: Path) -> Path:
    """Where there is no PACS: 600 smooth JPEGs of 160 pixels."""
    random = np.random.default_rng(0)
    for number in range(600):
        path = folder / "photo" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), np.uint8))
        coarse.resize((160, 160), Image.Resampling.BICUBIC).save(path, quality=90)
    return folder


if __name__ == "__main__":
    main()
