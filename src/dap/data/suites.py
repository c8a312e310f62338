"""Suites by name, by folder, by table or from the Hugging Face hub: one function loads them all."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from dap.data.augmentation import MEAN, STD
from dap.data.cache import cache_folder, cached, require_space
from dap.data.decoding import Decoded, find_unreadable
from dap.data.digits import SIDE, digits
from dap.data.folders import list_folder, refuse_empty
from dap.data.hub import list_hub
from dap.data.images import Images, Store
from dap.data.listing import Contents, Listing, some
from dap.data.tables import list_table
from dap.errors import DapError
from dap.runtime.files import expanded
from dap.specs.suites import SUITES


@dataclass(frozen=True)
class Suite:
    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Dataset[Any]]  # sorted by name
    pixels: int  # of an image's side
    mean: tuple[float, ...] = tuple(MEAN.flatten().tolist())  # what images are normalised with
    std: tuple[float, ...] = tuple(STD.flatten().tolist())


def load_suite(
    what: str | Path,
    root: str | Path | None = None,
    pixels: int = 224,
    cache: str | Path | Literal[False] | None = None,
    on_corrupt: Literal["fail", "skip"] = "fail",
) -> Suite:
    """A suite's domains, with images at (pixels, pixels).

    `what` is a name in `SUITES`, whose folder is in `root` (else `data`), a folder <domain>/<class>/<image>, in `root`
    if it is not where it was, a .csv or
    .parquet with columns path, label, domain (and group), or a dataset of the Hugging Face hub, `hf:name@split`.
    Decoded images are kept in `cache`, else as the digits are; with `cache=False` they are decoded each time.

    >>> suite = load_suite("pets", pixels=112)  # pets/<domain>/<class>/<image>
    >>> list(suite.domains), suite.classes
    (['day', 'night'], ('cat', 'dog'))
    """
    if what == "digits":
        classes = tuple(map(str, range(SUITES["digits"].classes)))
        return Suite("digits", classes, digits(Path(cache) if cache else None), SIDE, (0.0,) * 3, (1.0,) * 3)
    if pixels < 1:
        raise DapError(f"pixels is the side of an image, at least 1, not {pixels}")
    if on_corrupt not in ("fail", "skip"):
        raise DapError(f"on_corrupt is 'fail' or 'skip', not {on_corrupt!r}")
    contents = list_suite(what, root)
    folder = None if cache is False else Path(cache) if cache else cache_folder()
    if folder is not None:
        require_space(contents.domains.values(), pixels, folder)
    domains: dict[str, Images] = {}
    for domain, listing in contents.domains.items():
        store = _store(listing, pixels, folder, domain, on_corrupt)
        domains[domain] = Images(listing, store, np.arange(len(listing), dtype=np.int32))
    _tell(contents.name, domains, on_corrupt)
    return Suite(contents.name, contents.classes, domains, pixels)


def list_suite(what: str | Path, root: str | Path | None = None) -> Contents:
    """What there is of a suite, without opening an image."""
    name = str(what)
    path = Path(name) if name in SUITES or name.startswith("hf:") else expanded(name)
    if name in SUITES:
        benchmark = SUITES[name]
        folder = benchmark.place(root)
        if absent := [domain for domain in benchmark.images if not (folder / domain).is_dir()]:
            where = f"give its parent folder as root ({benchmark.home})"
            raise DapError(f"no {some(absent)} of {name} in {folder}: {where}")
        contents = list_folder(folder, name, tuple(benchmark.images))
    elif name.startswith("hf:"):
        return list_hub(name.removeprefix("hf:"))
    elif path.suffix in (".csv", ".parquet"):
        return list_table(path, expanded(root) if root else None)
    elif path.is_dir():
        folder, contents = path, list_folder(path)
    elif root and (folder := expanded(root) / path.name).is_dir():  # it was moved there
        contents = list_folder(folder)
    else:
        known = f"{', '.join(SUITES)}, a folder, a table or hf:<name>; of a folder that was moved, its parent as root"
        raise DapError(f"{name!r} is no folder and no suite: give {known}")
    refuse_empty(contents, folder)
    return contents


def _store(listing: Listing, pixels: int, folder: Path | None, title: str, on_corrupt: str) -> Store:
    if folder is not None:
        return cached(listing, pixels, folder, title)
    readable = np.ones(len(listing), bool)
    if on_corrupt == "skip":  # to be known before a split, so everything is decoded once
        readable[list(find_unreadable(listing, title))] = False
    return Decoded(listing, pixels, readable)


def _tell(name: str, domains: Mapping[str, Images], on_corrupt: str) -> None:
    """About images that cannot be read: an error or, if they are to be skipped, a warning."""
    skipped = [image for images in domains.values() for image in images.skipped]
    if not skipped:
        return
    listed = sum(len(images.listed) for images in domains.values())
    found = f"{len(skipped)} of {listed} images of {name} cannot be read"
    if on_corrupt == "fail":
        raise DapError(f"{found}: {some(skipped)}; mend or remove them, or leave them out with on_corrupt='skip'")
    if empty := [domain for domain, images in domains.items() if len(images) == 0]:
        raise DapError(f"{found}, and with them all of {empty[0]!r}: mend them")
    warnings.warn(f"{found} and are left out: {some(skipped)}", stacklevel=3)
