"""Image files below a suite's folder. Links are followed, each file counts once, and only regular files count."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dap.data.listing import some
from dap.errors import DapError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Why something is skipped.
_SPECIAL, _ABOVE, _ELSEWHERE = "not a regular file", "a link to a folder above", "a link to images listed elsewhere"


class Walk:
    """One pass over a suite's folder.

    A file is known by its resolved path: hard links are files of their own. Where the same file can be reached in
    several ways, its own place in the suite counts before links to it, and of several links the first.
    """

    def __init__(self, folder: Path, domains: Sequence[str] | None = None) -> None:
        self.folder, self._root = folder, os.path.realpath(folder)
        self._skipped: dict[str, list[str]] = {_SPECIAL: [], _ABOVE: [], _ELSEWHERE: []}
        # Resolved paths that links led to. Nothing is remembered of files at their own place: there may be millions.
        self._linked_folders: set[str] = set()
        self._linked_files: set[str] = set()
        self.domains = list(domains) if domains else self.folders("")

    def folders(self, below: str) -> list[str]:
        """Names of the folders in `below`, a path in the suite."""
        if not (self.folder / below).is_dir():
            return []
        here = os.path.realpath(self.folder / below)
        entries = (entry for entry in _entries(self.folder / below) if _is_folder(entry))
        return [entry.name for entry in entries if not self._leads_above(entry, below, [self._root, here])]

    def images(self, below: str) -> Iterator[str]:
        """Paths in the suite of the images in `below` and its folders, in the order of torchvision's ImageFolder."""
        above = [self._root, os.path.realpath((self.folder / below).parent)]
        for inside, names in sorted(self._walk(below, os.path.realpath(self.folder / below), above)):
            for name in names:
                yield os.path.join(inside, name)

    def notes(self) -> tuple[str, ...]:
        """What was skipped."""
        return tuple(f"skipped, {why}: {some(names)}" for why, names in self._skipped.items() if names)

    def _walk(self, inside: str, here: str, above: list[str]) -> Iterator[tuple[str, list[str]]]:
        """Folders with their images. `here` is the resolved path of `inside`; `above` those that were passed."""
        linked = here != os.path.join(self._root, inside)
        if linked:
            if self._is_listed(here, folder=True) or here in self._linked_folders:
                self._skipped[_ELSEWHERE].append(inside)
                return
            self._linked_folders.add(here)
        names: list[str] = []
        yield inside, names
        for entry in _entries(self.folder / inside):
            place = os.path.join(inside, entry.name)
            if _is_folder(entry):
                if not self._leads_above(entry, inside, [*above, here]):
                    there = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(here, entry.name)
                    yield from self._walk(place, there, [*above, here])
            elif entry.name.lower().endswith(EXTENSIONS):
                if _is_special(entry):
                    self._skipped[_SPECIAL].append(place)
                elif (linked or entry.is_symlink()) and self._is_seen(entry, here):
                    self._skipped[_ELSEWHERE].append(place)
                else:
                    names.append(entry.name)

    def _leads_above(self, entry: os.DirEntry[str], inside: str, passed: Sequence[str]) -> bool:
        if not entry.is_symlink():
            return False
        there = os.path.join(os.path.realpath(entry.path), "")
        if not any(os.path.join(folder, "").startswith(there) for folder in passed):
            return False
        place = os.path.join(inside, entry.name)
        if place not in self._skipped[_ABOVE]:
            self._skipped[_ABOVE].append(place)
        return True

    def _is_seen(self, entry: os.DirEntry[str], here: str) -> bool:
        """Whether a file that a link leads to, itself or on the way, is listed already, or will be."""
        if not entry.is_symlink():
            return os.path.join(here, entry.name) in self._linked_files
        if not os.path.exists(entry.path):
            return False  # an image that is missing
        file = os.path.realpath(entry.path)
        folder, name = os.path.split(file)
        shown = name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        if file in self._linked_files or (shown and (self._is_listed(file) or folder in self._linked_folders)):
            return True
        self._linked_files.add(file)
        return False

    def _is_listed(self, path: str, folder: bool = False) -> bool:
        """Whether a walk comes to this resolved path without a link: to <domain>/<class>, or a file in there."""
        if not path.startswith(os.path.join(self._root, "")):
            return False
        parts = os.path.relpath(path, self._root).split(os.sep)
        visible = not any(part.startswith(".") for part in parts)
        return len(parts) >= (2 if folder else 3) and visible and parts[0] in self.domains


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _is_special(entry: os.DirEntry[str]) -> bool:
    """Something that is there and is no file: a FIFO, a socket, a device."""
    if entry.is_symlink():
        return os.path.exists(entry.path) and not os.path.isfile(entry.path)
    return not entry.is_file()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in `folder`, sorted by name; hidden names are left out."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise DapError(f"cannot read {error.filename} ({error.strerror}): check its rights") from None
