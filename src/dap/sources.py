"""Batches of a source domain, from a dataset or from any iterable of batches."""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from dap.errors import DapError
from dap.seeding import derive_seed

Batch = tuple[Tensor, Tensor]
Source = Any  # a dataset of (image, label), or an iterable of batches


def is_dataset(source: Source) -> bool:
    """Whether single images can be drawn from it by index; a list or a loader is a sequence of batches."""
    by_index = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return by_index and not isinstance(source, list | tuple | DataLoader | IterableDataset)


def iter_once(source: Source) -> bool:
    """Whether it is used up by reading it, as a generator is."""
    return not is_dataset(source) and iter(source) is source


def batch_stream(domain: str, source: Source, batch_size: int, seed: int, start: int = 0) -> Iterator[Batch]:
    """Endless batches of one domain, from step `start` + 1 on.

    A batch from a dataset is drawn with replacement and is a function of seed, domain and step, so that a resumed run
    sees the same ones. From an iterable, which only runs forwards, the first `start` batches are drawn and dropped.
    """
    if is_dataset(source):
        return _draws(domain, source, batch_size, seed, start)
    return _passes(domain, source, start)


def to_device(batches: Mapping[str, Batch], device: torch.device) -> dict[str, Batch]:
    return {domain: (inputs.to(device), labels.to(device)) for domain, (inputs, labels) in batches.items()}


def take(dataset: Any, indices: Tensor) -> Batch:
    """The images and labels at `indices`, as one batch."""
    if isinstance(dataset, TensorDataset):
        inputs, labels = dataset[indices]  # pyright: ignore[reportArgumentType]  # a tensor of indices will do
        return inputs, labels
    items = [dataset[index] for index in indices.tolist()]
    inputs, labels = default_collate([(item[0], item[1]) for item in items])
    return inputs, labels


def _draws(domain: str, dataset: Any, batch_size: int, seed: int, start: int) -> Iterator[Batch]:
    if len(dataset) == 0:
        raise DapError(f"domain {domain!r} is empty: remove it or give it images")
    step = start
    while True:
        step += 1
        with _seeded(derive_seed("batch", seed, domain, step)):
            batch = take(dataset, torch.randint(len(dataset), (batch_size,)))
        yield batch


def _passes(domain: str, batches: Iterable[Batch], start: int) -> Iterator[Batch]:
    drawn = 0
    while True:
        before = drawn
        for batch in batches:
            drawn += 1
            if drawn > start:
                yield batch
        if drawn == before:
            raise DapError(f"domain {domain!r} gave no more batches after {drawn}: give an iterable that starts anew")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Fixed randomness for a dataset's own transforms inside, the caller's afterwards."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (what transforms in the wild draw from)
    torch.default_generator.manual_seed(seed)  # the CPU's, where datasets draw
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torch_state)
