"""Which images there are, before any is opened."""

import hashlib
import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from dap.errors import DapError


class Names(Sequence[str]):
    """Many strings in two buffers: a Python object for each of a million paths would take several times the memory."""

    def __init__(self, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        self._text, self._ends = bytes(text), ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return os.fsdecode(self._text[self._ends[place] : self._ends[place + 1]])

    def __bytes__(self) -> bytes:
        return self._ends.tobytes() + self._text

    @property
    def nbytes(self) -> int:
        return len(self._text) + self._ends.itemsize * len(self._ends)


@dataclass(frozen=True)
class Listing:
    """The images of one domain, in the order that the split goes by."""

    names: Names
    labels: np.ndarray  # [n], int32, places among the suite's classes
    groups: np.ndarray | None  # [n], int32; the same number is the same group in every domain
    fingerprint: str  # changes when an image is added, removed, renamed or written
    open: Callable[[int], Any]  # row to a path or a file, as PIL takes it

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits that change when an image is added, removed, renamed or gets another label."""
        return hashlib.sha256(bytes(self.names) + self.labels.tobytes()).hexdigest()[:12]


@dataclass(frozen=True)
class Contents:
    """A suite as it lies on disk: what to call it, its classes, and its domains sorted by name."""

    name: str
    classes: tuple[str, ...]
    domains: dict[str, Listing]
    group_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was found and is not listed


def list_files(
    base: Path, names: Sequence[str], labels: np.ndarray, groups: np.ndarray | None = None, missing: bool = False
) -> Listing:
    """A listing of files under `base`; `missing` says whether one that is not there may be listed nevertheless."""
    names = names if isinstance(names, Names) else Names(names)
    digest, absent, special = hashlib.sha256(), [], []
    for name in names:
        try:
            status = os.stat(os.path.join(base, name))
            stamp = (status.st_size, status.st_mtime_ns)
            if not stat.S_ISREG(status.st_mode):
                special.append(name)
        except OSError:
            absent.append(name)
            stamp = None
        digest.update(repr((name, stamp)).encode(errors="surrogateescape"))
    if absent and not missing:
        raise DapError(f"{some(absent)} not found under {base}: correct the paths, or bring the files")
    if special:
        raise DapError(f"{some(special)} under {base}: not a regular file; list image files only")
    return Listing(names, labels.astype(np.int32), groups, digest.hexdigest(), partial(_path, os.fspath(base), names))


def by_domain(domains: Sequence[object]) -> Iterator[tuple[str, np.ndarray]]:
    """Each domain's name and its rows, sorted by name; rows keep their order."""
    names, codes = encode(domains)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for code, name in enumerate(names):
        yield name, order[starts[code] : starts[code + 1]]


def encode(values: Sequence[object]) -> tuple[tuple[str, ...], np.ndarray]:
    """The different values, sorted, and each one's place among them: whole numbers by size, else as text.

    >>> encode(["cat", "bird", "cat"])
    (('bird', 'cat'), array([1, 0, 1], dtype=int32))
    """
    texts = [str(value) for value in values]
    distinct = set(texts)
    numbers = all(text.isdecimal() for text in distinct)
    names = tuple(sorted(distinct, key=lambda text: (int(text), text) if numbers else text))
    places = {name: place for place, name in enumerate(names)}
    return names, np.fromiter((places[text] for text in texts), np.int32, len(texts))


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first few of many names, and how many more.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _path(base: str, names: Names, row: int) -> str:
    return os.path.join(base, names[row])
