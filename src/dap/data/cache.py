"""Decoded images on disk: built once, by one process, resumed where it stopped, and never taken for whole before it is.

A cache is a folder of three plain arrays: `pixels`, `sizes`, and `sums`, a checksum of each image and one of the sizes
and checksums. While it is built it has another name; the sizes of a block are written after its pixels and checksums
are safely on disk, so that their number says how far the work has come.
"""

import errno
import hashlib
import os
import shutil
import sys
import weakref
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from dap.data.decoding import decode_rows
from dap.data.listing import Listing
from dap.errors import DapError
from dap.runtime.progress import progress

# Part of the key: raise it with any change to what is stored.
RECIPE = 1
BLOCK_BYTES = 2**25
SIZE_BYTES = 8  # height and width, int32
SUM_BYTES = 8  # a sum of 64 bits
REMEDY = (
    "free some space, point cache= or $DAP_CACHE at another disk, use fewer pixels, or decode each time: cache=False"
)


def cache_folder() -> Path:
    """`$DAP_CACHE`, else `$XDG_CACHE_HOME/dap`, else `~/.cache/dap`."""
    if chosen := os.environ.get("DAP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dap"


class Cached:
    """The images of a listing at (pixels, pixels), from disk. Reads what is asked for and keeps nothing of it.

    Positional reads rather than a memory map, of the same bytes in the same file. A map was no faster, raised the peak
    of a training by 43 and 71 MB (20,000 and 200,000 images of 32 pixels) even where every page was given back at once,
    and a file cut short ended the process without a word.

    An image is checked against its checksum when it is read for the first time: checking every time would take a tenth
    of the time of loading.
    """

    def __init__(self, folder: Path, pixels: int) -> None:
        self.folder, self.pixels = folder, pixels
        self._file = os.open(folder / "pixels", os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        count = os.fstat(self._file).st_size / _bytes(pixels)
        expected = {"sizes": count * SIZE_BYTES, "sums": (count + 1) * SUM_BYTES}
        if any((folder / name).stat().st_size != size for name, size in expected.items()):
            raise self._damaged()
        self.sizes = np.fromfile(folder / "sizes", np.int32).reshape(-1, 2)
        self._sums = np.fromfile(folder / "sums", np.uint64)
        self._checked = np.zeros(len(self.sizes), bool)
        if _total(self.sizes, self._sums[:-1]) != self._sums[-1] or not _plausible(self.sizes):
            raise self._damaged()

    def _damaged(self) -> DapError:
        return DapError(f"{self.folder} is damaged: delete it, and it is built again")

    def __reduce__(self) -> tuple[type["Cached"], tuple[Path, int]]:
        return Cached, (self.folder, self.pixels)

    @property
    def readable(self) -> np.ndarray:
        return self.sizes[:, 0] > 0

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes [n, 3, pixels, pixels], and the originals' heights and widths [n, 2]."""
        images = np.empty((len(rows), 3, self.pixels, self.pixels), np.uint8)
        size = _bytes(self.pixels)
        for image, row in zip(images, rows.tolist(), strict=True):
            if os.preadv(self._file, [image.data], row * size) != size:
                raise DapError(f"{self.folder} ends too early: delete it, and it is built again")
            if not self._checked[row]:
                if _sum(image) != self._sums[row]:
                    raise self._damaged()
                self._checked[row] = True
        return images, self.sizes[rows]


def require_space(listings: Iterable[Listing], pixels: int, folder: Path) -> None:
    """Refuses to begin what would not fit on the disk: all of a suite that is not in `folder` yet."""
    needed = missing(listings, pixels, folder) * _bytes(pixels)
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise DapError(f"decoded images need {needed:,} bytes in {folder}, where {free:,} are free: {REMEDY}")


def missing(listings: Iterable[Listing], pixels: int, folder: Path) -> int:
    """How many images are not in `folder` yet."""
    absent = 0
    for listing in listings:
        whole = _home(listing, pixels, folder)
        if not _is_whole(whole):
            absent += len(listing) - _finished(_partial(whole))
    return absent


def cached(listing: Listing, pixels: int, folder: Path, title: str) -> Cached:
    """The cache of `listing` in `folder`, built if it is not there. Files that cannot be decoded have no size in it."""
    whole = _home(listing, pixels, folder)
    if not _is_whole(whole):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(whole.with_suffix(".lock"), title):
                if not _is_whole(whole):
                    shutil.rmtree(whole, ignore_errors=True)
                    _build(listing, pixels, _partial(whole), title)
                    os.replace(_partial(whole), whole)
        except OSError as error:
            what = f"the disk of {folder} is full" if error.errno == errno.ENOSPC else f"cannot write to {folder}"
            raise DapError(f"{what} ({error.strerror}): {REMEDY}") from None
    found = Cached(whole, pixels)
    if len(found.sizes) != len(listing):
        raise DapError(f"{whole} has {len(found.sizes)} images, not {len(listing)}: delete it, and it is built again")
    return found


def _home(listing: Listing, pixels: int, folder: Path) -> Path:
    key = hashlib.sha256(repr((RECIPE, pixels, listing.fingerprint)).encode()).hexdigest()
    return folder / f"images-{key[:32]}"


def _is_whole(folder: Path) -> bool:
    """Earlier versions wrote no checksums: what they left is built again."""
    return (folder / "sums").is_file()


def _partial(whole: Path) -> Path:
    return whole.with_suffix(".partial")


def _finished(partial: Path) -> int:
    """How many images a build that was interrupted has left."""
    sizes = partial / "sizes"
    return sizes.stat().st_size // SIZE_BYTES if sizes.exists() else 0


def _bytes(pixels: int) -> int:
    return 3 * pixels * pixels


def _lock(path: Path, title: str) -> AbstractContextManager[object]:
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=1)
    except Timeout:
        print(f"{title}: waiting for another process, which is decoding the same images", file=sys.stderr)
        return lock.acquire()


def _build(listing: Listing, pixels: int, folder: Path, title: str) -> None:
    folder.mkdir(exist_ok=True)
    with (
        open(folder / "sizes", "ab") as sizes,
        open(folder / "pixels", "ab") as images,
        open(folder / "sums", "ab") as sums,
    ):
        start = min(_finished(folder), images.tell() // _bytes(pixels), sums.tell() // SUM_BYTES)
        # What is over was being written by a process that then died.
        sizes.truncate(start * SIZE_BYTES)
        images.truncate(start * _bytes(pixels))
        sums.truncate(start * SUM_BYTES)
        block = max(1, BLOCK_BYTES // _bytes(pixels))
        with progress(f"decoding {title}", len(listing)) as advance:
            for _ in range(start):
                advance("")
            for first in range(start, len(listing), block):
                rows = np.arange(first, min(first + block, len(listing)))
                decoded, originals, _ = decode_rows(listing, rows, pixels, strict=True)
                _append(images, decoded)
                _append(sums, np.array([_sum(image) for image in decoded], np.uint64))
                _append(sizes, originals)
                for _ in rows:
                    advance("")
        found = np.fromfile(folder / "sizes", np.int32), np.fromfile(folder / "sums", np.uint64)
        _append(sums, np.array([_total(*found)], np.uint64))


def _sum(image: np.ndarray) -> int:
    """The sum of an image's words of 64 bits, each times an odd number of its place: a changed byte changes it.

    It takes a third of the time of a CRC-32.
    """
    flat = image.reshape(-1)
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    rest = int.from_bytes(flat[8 * len(words) :].tobytes(), "little")
    return (int((words * _odd(len(words))).sum()) + rest) % 2**64


@lru_cache(maxsize=4)
def _odd(count: int) -> np.ndarray:
    return np.arange(1, 2 * count, 2, dtype=np.uint64)


def _total(sizes: np.ndarray, sums: np.ndarray) -> int:
    return zlib.crc32(sums.tobytes(), zlib.crc32(sizes.tobytes()))


def _plausible(sizes: np.ndarray) -> bool:
    """Both sides are there, or neither: a file that cannot be decoded has no size."""
    return bool((sizes >= 0).all() and ((sizes[:, 0] > 0) == (sizes[:, 1] > 0)).all())


def _append(file: BinaryIO, array: np.ndarray) -> None:
    file.write(array.data)
    file.flush()
    os.fsync(file.fileno())
