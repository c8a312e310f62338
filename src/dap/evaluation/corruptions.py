"""The 15 corruptions of ImageNet-C at five severities: made once, kept, and shown to every model."""

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dap.data.cache import cache_folder
from dap.errors import DapError
from dap.evaluation.pixels import InPixels, batches
from dap.files import replacing
from dap.masking import frozen
from dap.seeding import derive_seed
from dap.sources import Source

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 32  # pixels of a side
_RECIPE = 1  # part of the key: raise it with any change to what is kept


class Corrupted(NamedTuple):
    """How a model does on corrupted images."""

    clean: float  # accuracy
    accuracy: dict[str, dict[int, float]]  # by corruption and severity

    @property
    def mean(self) -> float:
        return fmean(value for severities in self.accuracy.values() for value in severities.values())

    def relative_error(self, dense: "Corrupted") -> float:
        """The mean corruption error relative to another model: below 1, fewer mistakes. ImageNet-C's, by AlexNet."""
        return fmean(_errors(self.accuracy[name]) / max(_errors(dense.accuracy[name]), 1e-12) for name in self.accuracy)


def _errors(severities: Mapping[int, float]) -> float:
    return sum(1 - accuracy for accuracy in severities.values())


def on_corruptions(
    models: Mapping[str, InPixels],
    sources: Mapping[str, Source],
    *,
    images: int | None = None,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    folder: str | Path | None = None,
    batch_size: int = 256,
    workers: int | None = None,
    on_step: Callable[[str, int, int], None] | None = None,
) -> dict[str, dict[str, Corrupted]]:
    """Every model on every corruption of the first `images` of each domain: by model and domain.

    Corrupted images are kept in `folder`, else beside the decoded ones, and made by `workers` processes, else by as
    many as there are cores. `on_step` hears what is done, how many of how many.
    """
    for name in corruptions:
        if name not in CORRUPTIONS:
            raise DapError(f"there is no corruption {name!r}; choose among {', '.join(CORRUPTIONS)}")
    first = next(iter(models.values()))
    parts = {domain: _pixels(first, source, images) for domain, source in sources.items()}
    pixels = np.concatenate([part for part, _ in parts.values()])
    bounds = np.cumsum([0, *(len(labels) for _, labels in parts.values())])
    places = {domain: slice(*pair) for domain, pair in zip(parts, pairwise(bounds), strict=True)}
    wished = [(name, severity) for name in corruptions for severity in severities]
    kept = corrupt(pixels, wished, Path(folder) if folder else cache_folder(), workers, on_step)

    def accuracies(model: InPixels, shown: np.ndarray) -> dict[str, float]:
        return {domain: _accuracy(model, shown[places[domain]], parts[domain][1], batch_size) for domain in parts}

    clean = {name: accuracies(model, pixels) for name, model in models.items()}
    found = {
        name: {domain: Corrupted(clean[name][domain], {one: {} for one in corruptions}) for domain in parts}
        for name in models
    }
    for number, ((corruption, severity), file) in enumerate(kept.items(), 1):
        variant = np.load(file, mmap_mode="r")
        for name, model in models.items():
            for domain, accuracy in accuracies(model, variant).items():
                found[name][domain].accuracy[corruption][severity] = accuracy
        if on_step is not None:
            on_step("corrupted images", number, len(kept))
    return found


def corrupt(
    pixels: np.ndarray,
    wished: Sequence[tuple[str, int]],
    folder: Path,
    workers: int | None = None,
    on_step: Callable[[str, int, int], None] | None = None,
) -> dict[tuple[str, int], Path]:
    """Files with the corrupted images [n, h, w, 3] of each corruption and severity; what is there is not made again."""
    if min(pixels.shape[1:3]) < SMALLEST:
        raise DapError(f"images of {pixels.shape[1]} pixels are too small: corruptions need at least {SMALLEST}")
    key = hashlib.sha256(repr((_RECIPE, pixels.shape)).encode() + pixels.tobytes()).hexdigest()[:32]
    home = folder / f"corruptions-{key}"
    files = {(name, severity): home / f"{name}-{severity}.npy" for name, severity in wished}
    absent = {wish: file for wish, file in files.items() if not file.is_file()}
    if not absent:
        return files
    try:
        import imagecorruptions  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DapError("corruptions need imagecorruptions-imaug: pip install 'dap[robustness]'") from None
    originals = home / "originals.npy"
    _save(originals, pixels)
    # Processes of their own: the library draws from numpy's global state, and holds Python's lock.
    context, count = multiprocessing.get_context("spawn"), min(workers or os.cpu_count() or 1, len(absent))
    with ProcessPoolExecutor(count, context) as pool:
        jobs = [pool.submit(_make, originals, *wish, file) for wish, file in absent.items()]
        for number, job in enumerate(as_completed(jobs), 1):
            job.result()
            if on_step is not None:
                on_step("corrupting images", number, len(jobs))
    return files


def _make(originals: Path, name: str, severity: int, file: Path) -> None:
    from imagecorruptions import corrupt as one  # pyright: ignore[reportMissingImports]

    pixels = np.load(originals)
    made = np.empty_like(pixels)
    for place, image in enumerate(pixels):
        seed = derive_seed("corruption", name, severity, place) % 2**31
        np.random.seed(seed)  # noqa: NPY002  # what the library draws from
        seeded = {"seed": seed} if name in ("impulse_noise", "glass_blur") else {}  # and where it does not
        made[place] = np.clip(one(image, severity=severity, corruption_name=name, **seeded), 0, 255)
    _save(file, made)


def _save(file: Path, array: np.ndarray) -> None:
    with replacing(file) as temporary, open(temporary, "wb") as stream:
        np.save(stream, array)


def _pixels(model: InPixels, source: Source, images: int | None) -> tuple[np.ndarray, Tensor]:
    """Bytes [n, h, w, 3], and labels."""
    parts, labels = [], []
    for inputs, targets in batches(source, 256, images):
        parts.append((255 * model.pixels(inputs.to(model.mean.device))).round().byte().cpu())
        labels.append(targets)
    if not parts:
        raise DapError("corruptions need at least one image")
    return torch.cat(parts).permute(0, 2, 3, 1).contiguous().numpy(), torch.cat(labels)


@torch.no_grad()
def _accuracy(model: InPixels, pixels: np.ndarray, labels: Tensor, batch_size: int) -> float:
    right = 0
    with frozen(model):
        for images, targets in zip(_split(pixels, batch_size), labels.split(batch_size), strict=True):
            batch = torch.from_numpy(images).to(model.mean.device).permute(0, 3, 1, 2).float().div_(255)
            right += int((model(batch).argmax(1).cpu() == targets).sum())
    return right / len(labels)


def _split(pixels: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(pixels), size):
        yield np.array(pixels[start : start + size])
