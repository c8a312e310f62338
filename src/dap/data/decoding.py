"""Image files to bytes of a square: DomainBed's eval transform up to the normalisation."""

import errno
import os
import stat
from typing import Any

import numpy as np
from PIL import Image

from dap.data.listing import Listing
from dap.data.threads import in_threads
from dap.errors import DapError
from dap.runtime.progress import progress


def decode(file: Any, pixels: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Bytes [3, pixels, pixels], and the original's height and width. `file` is a path or an open file.

    Raises whatever the decoder raises if the file is damaged: a truncated image is not filled up with grey. A path that
    is no regular file is refused before it is opened: reading a FIFO would wait for ever.
    """
    if isinstance(file, str | os.PathLike) and not stat.S_ISREG(os.stat(file).st_mode):
        raise DapError("it is not a regular file")
    with Image.open(file) as picture:
        width, height = picture.size
        # Converting drops it anyway, but not without a warning for some palettes.
        picture.info.pop("transparency", None)
        square = picture.convert("RGB").resize((pixels, pixels), Image.Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1), (height, width)


def decode_rows(
    listing: Listing, rows: np.ndarray, pixels: int, strict: bool = False
) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Bytes [n, 3, pixels, pixels], sizes [n, 2] and, for rows that cannot be decoded, what is wrong with them.

    `strict`: a file that the system does not hand over is an error at once. It may be sound, and there the next time.
    """
    images = np.zeros((len(rows), 3, pixels, pixels), np.uint8)
    sizes = np.zeros((len(rows), 2), np.int32)
    errors: dict[int, str] = {}

    def one(place: int) -> None:
        row = int(rows[place])
        try:
            images[place], sizes[place] = decode(listing.open(row), pixels)
        except Exception as error:  # decoders of damaged files raise anything at all
            if strict and isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
                raise DapError(f"cannot read {listing.names[row]} ({error.strerror}): check disk and rights") from None
            if strict and isinstance(error, MemoryError):
                raise DapError(f"there is not enough memory to decode {listing.names[row]}: free some") from None
            errors[row] = " ".join(str(error).split()) or type(error).__name__

    in_threads(one, len(rows))
    return images, sizes, errors


def find_unreadable(listing: Listing, title: str) -> dict[int, str]:
    """Decodes every image: row to what is wrong, for those that cannot be."""
    errors: dict[int, str] = {}
    with progress(f"reading {title}", len(listing)) as advance:
        for rows in np.array_split(np.arange(len(listing)), -(-len(listing) // 256) or 1):
            errors |= decode_rows(listing, rows, pixels=8)[2]
            for _ in rows:
                advance("")
    return dict(sorted(errors.items()))


class Decoded:
    """The images of a listing at (pixels, pixels), decoded each time; `readable` if that is known."""

    def __init__(self, listing: Listing, pixels: int, readable: np.ndarray | None = None) -> None:
        self.pixels, self._listing = pixels, listing
        self.readable = np.ones(len(listing), bool) if readable is None else readable

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes [n, 3, pixels, pixels], and the originals' heights and widths [n, 2]."""
        images, sizes, errors = decode_rows(self._listing, rows, self.pixels)
        for row, error in errors.items():
            raise DapError(
                f"cannot read {self._listing.names[row]} ({error}): mend it, remove it, or leave it out with "
                "on_corrupt='skip'"
            )
        return images, sizes
