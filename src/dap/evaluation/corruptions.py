"""The 15 corruptions of ImageNet-C at five severities: made once, kept, and shown to every model."""

import hashlib
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from dap.data.cache import cache_folder
from dap.errors import DapError
from dap.evaluation.pixels import InPixels, batches
from dap.masks.attach import frozen
from dap.runtime.files import replacing
from dap.runtime.seeding import derive_seed
from dap.runtime.sources import Source

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 32  # pixels of a side
_ORIGINALS = "originals.npy"
_RECIPE = 2  # part of the key: raise it with any change to what is kept


class Corrupted(NamedTuple):
    """How a model does on corrupted images."""

    clean: float  # accuracy
    accuracy: dict[str, dict[int, float]]  # by corruption and severity

    @property
    def mean(self) -> float:
        return fmean(value for severities in self.accuracy.values() for value in severities.values())

    @property
    def errors(self) -> float:
        """Over all corruptions and severities."""
        return sum(1 - accuracy for severities in self.accuracy.values() for accuracy in severities.values())

    def relative_error(self, dense: "Corrupted") -> float | None:
        """The corruption error relative to another model's: below 1, fewer mistakes. None where that makes none.

        Of the sums, unlike ImageNet-C's, which is a mean of ratios: a corruption on which the other model makes no
        mistake would have none.
        """
        return self.errors / dense.errors if dense.errors else None


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
    wished = [(name, severity) for name in corruptions for severity in severities]
    pixels = {domain: part for domain, (part, _) in parts.items()}
    kept = corrupt(pixels, wished, Path(folder) if folder else cache_folder(), workers, on_step)
    found: dict[str, dict[str, Corrupted]] = {name: {} for name in models}
    for name, model in models.items():
        for domain, (part, labels) in parts.items():
            clean = _accuracy(model, part, labels, batch_size)
            found[name][domain] = Corrupted(clean, {one: {} for one in corruptions})
    for number, (corruption, severity) in enumerate(wished, 1):
        for domain, (_, labels) in parts.items():
            variant = np.load(kept[domain][corruption, severity], mmap_mode="r")
            for name, model in models.items():
                accuracy = _accuracy(model, variant, labels, batch_size)
                found[name][domain].accuracy[corruption][severity] = accuracy
        if on_step is not None:
            on_step("corrupted images", number, len(wished))
    return found


def corrupt(
    parts: Mapping[str, np.ndarray],
    wished: Sequence[tuple[str, int]],
    folder: Path,
    workers: int | None = None,
    on_step: Callable[[str, int, int], None] | None = None,
) -> dict[str, dict[tuple[str, int], Path]]:
    """By domain, files with its corrupted images [n, h, w, 3], for each corruption and severity.

    What is there is not made again. What an image becomes depends on its content alone, not on what it is among.
    """
    check_corruptible(min(side for pixels in parts.values() for side in pixels.shape[1:3]))
    homes = {domain: folder / f"corruptions-{_key(pixels)}" for domain, pixels in parts.items()}
    files = {domain: {wish: home / f"{wish[0]}-{wish[1]}.npy" for wish in wished} for domain, home in homes.items()}

    def absent() -> list[tuple[str, tuple[str, int], Path]]:
        return [
            (domain, wish, file)
            for domain, found in files.items()
            for wish, file in found.items()
            if not _is_whole(file, parts[domain].shape)
        ]

    if not absent():
        return files
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "corruptions.lock"):  # who comes second finds what the first has made
        left = absent()
        if not left:
            return files
        _check_room(folder, sum(parts[domain].nbytes for domain, _, _ in left))
        for domain in dict.fromkeys(domain for domain, _, _ in left):
            _save(homes[domain] / _ORIGINALS, parts[domain])
        jobs = [(homes[domain] / _ORIGINALS, *wish, file) for domain, wish, file in left]
        for number, _ in enumerate(_in_parallel(_make, jobs, workers), 1):
            if on_step is not None:
                on_step("corrupting images", number, len(jobs))
    return files


def check_corruptible(pixels: int) -> None:
    """Refuse images that are too small, and an install that cannot corrupt."""
    if pixels < SMALLEST:
        raise DapError(f"images of {pixels} pixels are too small: corruptions need at least {SMALLEST}")
    if find_spec("imagecorruptions") is None:
        raise DapError("corruptions need imagecorruptions-imaug: pip install 'dap[robustness]'")


def _key(pixels: np.ndarray) -> str:
    return hashlib.sha256(repr((_RECIPE, pixels.shape)).encode() + pixels.tobytes()).hexdigest()[:32]


def _is_whole(file: Path, shape: tuple[int, ...]) -> bool:
    """A file that was cut short, or is something else, is made again."""
    try:
        found = np.load(file, mmap_mode="r")
    except Exception:  # damaged headers give errors of many types
        return False
    return found.shape == shape and found.dtype == np.uint8


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        remedy = "take fewer images, free some space, or point $DAP_CACHE at another disk"
        raise DapError(f"corrupted images need {needed:,} bytes in {folder}, where {free:,} are free: {remedy}")


def _in_parallel(function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], workers: int | None) -> Iterator[None]:
    """In processes of their own: the library draws from numpy's global state, and holds Python's lock."""
    before = set(multiprocessing.active_children())
    count = min(workers or os.cpu_count() or 1, len(jobs))
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_leave_ctrl_c_to_the_parent)
    try:
        for job in as_completed([pool.submit(function, *job) for job in jobs]):
            yield job.result()
    except BrokenProcessPool:
        raise DapError(
            "a process that corrupts images could not start, or was ended, perhaps for want of memory: take fewer "
            'images; a script needs `if __name__ == "__main__":`'
        ) from None
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:  # nobody waits for what is under way
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _make(originals: Path, name: str, severity: int, file: Path) -> None:
    from imagecorruptions import corrupt as one  # pyright: ignore[reportMissingImports]

    pixels = np.load(originals, mmap_mode="r")
    with replacing(file) as temporary:
        made = np.lib.format.open_memmap(temporary, "w+", np.uint8, pixels.shape)
        for place, image in enumerate(pixels):
            content = hashlib.sha256(image.tobytes()).hexdigest()
            seed = derive_seed("corruption", name, severity, content) % 2**31
            np.random.seed(seed)  # noqa: NPY002  # what the library draws from
            seeded = {"seed": seed} if name in ("impulse_noise", "glass_blur") else {}  # and where it does not
            corrupted = one(np.array(image), severity=severity, corruption_name=name, **seeded)
            made[place] = np.clip(corrupted, 0, 255)
        made.flush()


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
