"""A suite that is a folder, <domain>/<class>/<image>, in the order in which torchvision's ImageFolder lists it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dap.data.listing import Contents, Listing, Names, list_files
from dap.data.walking import Walk
from dap.errors import DapError


def list_folder(folder: Path, name: str | None = None, domains: Sequence[str] | None = None) -> Contents:
    """What is in `folder`, of all its domains or of `domains` only. A domain need not have every class.

    Links are followed. An image that several of them lead to is listed once, and only regular files are listed.
    """
    if not folder.is_dir():
        raise DapError(f"no folder {folder}: give one that holds <domain>/<class>/<image>")
    walk = Walk(folder, domains)
    found = {domain: walk.folders(domain) for domain in walk.domains}
    classes = sorted({name for names in found.values() for name in names})
    listings = {domain: _domain(walk, domain, names, classes) for domain, names in sorted(found.items())}
    return Contents(name or folder.resolve().name, tuple(classes), listings, notes=walk.notes())


def refuse_empty(contents: Contents, folder: Path) -> None:
    """Every domain and every class must have images; the folders of others are mistakes, and count as classes."""
    expected = "images are expected as <domain>/<class>/<image>; for a Hugging Face dataset write hf:<folder>"
    if not contents.domains:
        raise DapError(f"no domains in {folder}: {expected}")
    images = np.zeros(len(contents.classes), int)
    for domain, listing in contents.domains.items():
        if len(listing) == 0:
            raise DapError(f"no images in {folder / domain}: {expected}")
        images += np.bincount(listing.labels, minlength=len(images))
    if not images.all():
        name = contents.classes[images.argmin()]
        raise DapError(f"class {name!r} of {folder} has no images in any domain: fill its folders or remove them")


def _domain(walk: Walk, domain: str, present: Sequence[str], classes: Sequence[str]) -> Listing:
    labels: list[int] = []

    def names() -> Iterator[str]:
        for name in present:
            before = len(labels)
            for image in walk.images(os.path.join(domain, name)):
                labels.append(classes.index(name) if len(labels) == before else labels[-1])
                yield image

    listed = Names(names())
    return list_files(walk.folder, listed, np.array(labels, np.int32), missing=True)
