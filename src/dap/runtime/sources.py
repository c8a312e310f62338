"""Batches of a source domain, from a dataset or from any iterable of batches."""

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from dap.errors import DapError
from dap.runtime.batches import as_batch
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.seeding import derive_seed

Batch = tuple[Tensor, Tensor]
_USUAL = 4096  # images in a batch whose memory is not worth a look
Source = Any  # a dataset of (image, label), or an iterable of batches


def is_dataset(source: Source) -> bool:
    """Whether single images can be drawn from it by index; a list or a loader is a sequence of batches."""
    if isinstance(source, str) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        raise DapError(f"a source is a {type(source).__name__}: give a dataset, or an iterable of batches")
    by_index = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return by_index and not isinstance(source, list | tuple | DataLoader | IterableDataset)


def iter_once(source: Source) -> bool:
    """Whether it is used up by reading it, as a generator is."""
    return not is_dataset(source) and iter(source) is source


def check_held_out(validation: Mapping[str, Source]) -> None:
    """Refuse what cannot be evaluated again and again."""
    for domain, held_out in validation.items():
        if iter_once(held_out) or (hasattr(held_out, "__len__") and len(held_out) == 0):
            raise DapError(f"the validation of domain {domain!r} is empty or can be read only once: give a dataset")


def draws_alone(source: Source) -> bool:
    """Whether drawing from it leaves the global random state alone, so that another thread may do it."""
    return isinstance(source, TensorDataset) or hasattr(source, "batch")


def batch_stream(
    domain: str, source: Source, batch_size: int, seed: int, start: int = 0, ranks: Ranks = ALONE
) -> Iterator[Batch]:
    """Endless batches of one domain, from step `start` + 1 on; of several ranks, each gets its share of every batch.

    A batch from a dataset is drawn with replacement and is a function of seed, domain and step, so that a resumed run
    sees the same ones. From an iterable, which only runs forwards, the first `start` batches are drawn and dropped.
    """
    if is_dataset(source):
        return _draws(domain, source, batch_size, seed, start, ranks)
    return _passes(domain, source, start, ranks)


def to_device(batches: Mapping[str, Batch], device: torch.device) -> dict[str, Batch]:
    found = {domain: as_batch(batch, f"domain {domain!r}") for domain, batch in batches.items()}
    return {domain: (inputs.to(device), labels.to(device)) for domain, (inputs, labels) in found.items()}


def laid_out(inputs: Tensor) -> Tensor:
    """Pictures on a CPU with channels last, where a forward pass takes two thirds of the time; the rest as it is.

    Always a copy: a model may change its inputs in place.
    """
    picture = inputs.dim() == 4 and inputs.device.type == "cpu"
    return inputs.clone(memory_format=torch.channels_last if picture else torch.preserve_format)


def take(dataset: Any, indices: Tensor, seeds: np.ndarray | None = None) -> Batch:
    """The images and labels at `indices`, as one batch; with `seeds`, one per image, its random transforms are fixed.

    A dataset with a method `batch(indices, seeds)` gives the whole batch at once, as `dap.data.Images` does.
    """
    if hasattr(dataset, "batch"):
        return dataset.batch(indices, seeds)
    if isinstance(dataset, TensorDataset):
        return as_batch(dataset[indices], "the dataset")  # pyright: ignore[reportArgumentType]  # a tensor will do
    with _restored():
        items = []
        for place, index in enumerate(indices.tolist()):
            if seeds is not None:
                _seed_all(int(seeds[place]))
            items.append(dataset[index])
    return as_batch(_collated(items), "the dataset")


def _collated(items: list[Any]) -> Any:
    """Of an item that is (input, label, …), the first two; what cannot be one batch is an error."""
    pairs = [item[:2] if isinstance(item, tuple | list) else item for item in items]
    try:
        return default_collate(pairs)
    except (TypeError, RuntimeError) as error:
        raise DapError(
            f"the dataset's items cannot be put into one batch ({str(error).splitlines()[0]}): let it give an input as "
            f"a tensor, of one shape for all, and a whole-number label"
        ) from error


def _draws(domain: str, dataset: Any, batch_size: int, seed: int, start: int, ranks: Ranks) -> Iterator[Batch]:
    if len(dataset) == 0:
        raise DapError(f"domain {domain!r} is empty: remove it or give it images")
    share = ranks.share(batch_size)
    check_memory({domain: dataset}, batch_size // ranks.size)
    step, generator = start, torch.Generator("cpu")
    while True:
        step += 1
        generator.manual_seed(derive_seed("batch", seed, domain, step))
        indices = torch.randint(len(dataset), (batch_size,), generator=generator, device="cpu")
        # Of each image, not of the batch: it is then the same whoever takes it.
        seeds = np.random.SFC64(derive_seed("images", seed, domain, step)).random_raw(batch_size)
        yield take(dataset, indices[share], seeds[share])


def check_memory(sources: Mapping[str, Source], batch_size: int) -> None:
    """Refuse batches of datasets that do not fit into this machine's memory, before it is taken."""
    datasets = {domain: source for domain, source in sources.items() if is_dataset(source) and len(source)}
    if batch_size <= _USUAL or not datasets:
        return
    first = torch.zeros(1, dtype=torch.long, device="cpu"), np.zeros(1, np.uint64)
    needed = batch_size * sum(take(dataset, *first)[0].nbytes for dataset in datasets.values())
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        size = f"{needed / 1e9:,.0f} GB for the images alone, and this machine has {there / 1e9:,.0f} GB"
        raise DapError(f"batch_size is {batch_size:,}, of {', '.join(datasets)}: that takes {size}; lower it")


def _passes(domain: str, batches: Iterable[Batch], start: int, ranks: Ranks) -> Iterator[Batch]:
    drawn = 0
    while True:
        before = drawn
        for batch in batches:
            drawn += 1
            if drawn > start:
                inputs, labels = as_batch(batch, f"domain {domain!r}")
                share = ranks.share(len(labels))
                yield (inputs[share], labels[share]) if ranks.size > 1 else (inputs, labels)
        if drawn == before:
            raise DapError(f"domain {domain!r} gave no more batches after {drawn}: give an iterable that starts anew")


def _seed_all(seed: int) -> None:
    """Fix what a dataset's own transforms draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # the CPU's, where datasets draw


@contextmanager
def _restored() -> Iterator[None]:
    """Afterwards the caller's randomness goes on as if nothing had been drawn inside."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torch_state)
