"""The images of one domain as a dataset that gives whole batches."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dap.data.augmentation import augment, normalise
from dap.data.listing import Listing


class Store(Protocol):
    """Where a listing's decoded images come from."""

    pixels: int

    @property
    def readable(self) -> np.ndarray: ...
    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


class Images(Dataset[tuple[Tensor, int]]):
    """Images of one domain, [3, s, s] normalised with ImageNet's statistics, and their labels.

    >>> from dap.data import load_suite  # pets/<domain>/<class>/<image>
    >>> night = load_suite("pets", pixels=112).domains["night"].augmented()
    >>> inputs, labels = night.batch(torch.arange(10), seeds=np.arange(10, dtype=np.uint64))
    >>> inputs.shape, labels.shape
    (torch.Size([10, 3, 112, 112]), torch.Size([10]))
    """

    def __init__(self, listing: Listing, store: Store, listed: np.ndarray, augmenting: bool = False) -> None:
        self._listing, self._store, self._augmenting = listing, store, augmenting
        # Images that cannot be read stay listed, so that a split puts all others where it would have put them anyway.
        self.listed = listed
        readable = store.readable[listed]
        self._rows = listed if readable.all() else listed[readable]
        self.skipped = [listing.names[row] for row in listed[~readable]]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs, labels = self.batch(torch.tensor([range(len(self))[index]], device="cpu"))
        return inputs[0], int(labels[0])

    def batch(self, indices: Tensor, seeds: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """Images [n, 3, s, s] and labels [n] at `indices` [n].

        With the train transform on, image k is changed as `seeds[k]`, uint64, says; without seeds they are drawn from
        torch's own generator.
        """
        rows = self._rows[indices.numpy()]
        images, sizes = self._store.read(rows)
        inputs = np.empty(images.shape, np.float32)
        if not self._augmenting:
            normalise(images, inputs)
        else:
            if seeds is None:
                seeds = torch.randint(2**63 - 1, (len(rows),), device="cpu").numpy().astype(np.uint64)
            augment(images, sizes, seeds, inputs)
        return torch.from_numpy(inputs), torch.from_numpy(self._listing.labels[rows].astype(np.int64))

    def augmented(self, on: bool = True) -> "Images":
        """The same images with the train transform, or without."""
        return Images(self._listing, self._store, self.listed, augmenting=on)

    def with_listed(self, listed: np.ndarray) -> "Images":
        """The images at these rows of the listing, whether they can be read or not."""
        return Images(self._listing, self._store, listed, self._augmenting)

    @property
    def identity(self) -> str:
        """Of the whole domain: see `Listing`."""
        return self._listing.identity

    @property
    def labels(self) -> Tensor:
        """[n], int64."""
        return torch.from_numpy(self._listing.labels[self._rows].astype(np.int64))

    @property
    def groups(self) -> np.ndarray | None:
        """[n], int32, the same number for the same group in every domain of the suite; None without groups."""
        return None if self._listing.groups is None else self._listing.groups[self._rows]

    @property
    def listed_groups(self) -> np.ndarray | None:
        return None if self._listing.groups is None else self._listing.groups[self.listed]

    @property
    def names(self) -> list[str]:
        """Their paths, relative to the suite."""
        return [self._listing.names[row] for row in self._rows.tolist()]
