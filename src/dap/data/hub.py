"""A suite that is a Hugging Face dataset with columns image, label, domain and, if need be, group."""

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from dap.data.listing import Contents, Listing, Names, by_domain, encode
from dap.errors import DapError
from dap.runtime.offline import is_local_only

COLUMNS = ("image", "label", "domain")


def list_hub(what: str) -> Contents:
    """What is in a dataset: a name on the hub or a local folder, with `@split` if it has several."""
    name, _, split = what.partition("@")
    dataset = _load(name, split)
    if missing := [column for column in COLUMNS if column not in dataset.column_names]:
        has = ", ".join(dataset.column_names)
        raise DapError(f"{name} has no column {missing[0]!r}, only {has}: rename its columns to image, label, domain")
    from datasets import Image

    # Not decoded by the library: its images would come at full size, and a damaged one as an error without a name.
    dataset = dataset.cast_column("image", Image(decode=False))
    classes, labels = encode(_texts(dataset, "label", name))
    group_names, groups = encode(_texts(dataset, "group", name)) if "group" in dataset.column_names else ((), None)
    fingerprint = _fingerprint(dataset)
    listings = {}
    for domain, rows in by_domain(_texts(dataset, "domain", name)):
        listings[domain] = Listing(
            Names(f"row {row}" for row in rows.tolist()),
            labels[rows],
            None if groups is None else groups[rows],
            hashlib.sha256(repr((fingerprint, domain)).encode()).hexdigest(),
            partial(_open, dataset, rows),
        )
    return Contents(Path(name).name, classes, listings, group_names)


def _load(name: str, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise DapError(f"reading hf:{name} needs the datasets library: pip install 'dap[hub]'") from None
    saved = any((Path(name) / file).is_file() for file in ("state.json", "dataset_dict.json"))
    try:
        dataset = datasets.load_from_disk(name) if saved else datasets.load_dataset(name)
    except Exception as error:  # of the network, the hub or the files: the library raises its own and many others'
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = "check its name and the connection"
        if is_local_only():
            remedy = f"fetch it first, with dap data check hf:{name}, or allow the network with --trust-code"
        raise DapError(f"cannot load the dataset {name} ({reason}): {remedy}") from None
    if not isinstance(dataset, dict):
        if split:
            raise DapError(f"{name} has no splits: leave @{split} away")
        return dataset
    if not split and len(dataset) == 1:
        return next(iter(dataset.values()))
    if split not in dataset:
        raise DapError(
            f"{name} has the splits {', '.join(map(str, dataset))}: choose one, as in hf:{name}@{next(iter(dataset))}"
        )
    return dataset[split]


def _texts(dataset: Any, column: str, name: str) -> Sequence[object]:
    from datasets import ClassLabel

    values, feature = dataset[column][:], dataset.features[column]
    if isinstance(feature, ClassLabel):
        # Labels that are not known are −1 there.
        values = [feature.int2str(value) if value is not None and value >= 0 else None for value in values]
    for row, value in enumerate(values):
        if not isinstance(value, str | int) or value == "":
            raise DapError(f"{name} has the {column} {value!r} in row {row}: use text or whole numbers")
    return values


def _fingerprint(dataset: Any) -> str:
    files = [file["filename"] for file in dataset.cache_files]
    stamps = [(os.path.basename(file), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    return repr((dataset._fingerprint, len(dataset), stamps))


def _open(dataset: Any, rows: Any, row: int) -> Any:
    image = dataset[int(rows[row])]["image"]
    return BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"]
