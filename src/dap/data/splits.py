"""Which images of a domain are held out: DomainBed's rule, so that numbers can be compared with its tables."""

from collections.abc import Sized
from hashlib import md5
from typing import Any, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from dap.errors import DapError


@overload
def split(
    dataset: TensorDataset, domain_index: int, seed: int, holdout: float = 0.2
) -> tuple[TensorDataset, TensorDataset]: ...
@overload
def split(
    dataset: Dataset[Any], domain_index: int, seed: int, holdout: float = 0.2
) -> tuple[Dataset[Any], Dataset[Any]]: ...
def split(
    dataset: Dataset[Any], domain_index: int, seed: int, holdout: float = 0.2
) -> tuple[Dataset[Any], Dataset[Any]]:
    """The training part and the held-out part of one domain, `domain_index` being its place among the sorted domains.

    >>> from dap.data import digits
    >>> train, held_out = split(digits()["plain"], domain_index=1, seed=0)
    >>> len(train), len(held_out)
    (360, 89)
    """
    if not 0.0 <= holdout <= 1.0:
        raise DapError(f"holdout is a share of the images, between 0 and 1, not {holdout}")
    order = np.arange(len(cast(Sized, dataset)))  # torch does not promise the length that every dataset here has
    np.random.RandomState(seed_hash(seed, domain_index)).shuffle(order)
    held_out = int(holdout * len(order))
    return _take(dataset, order[held_out:]), _take(dataset, order[:held_out])


def seed_hash(*args: object) -> int:
    """A seed in [0, 2³¹) made from anything that prints; the same as `domainbed.lib.misc.seed_hash`.

    >>> seed_hash(0, 1)
    1514274641
    """
    # Not for secrecy, so that it also works where md5 is forbidden for that.
    return int(md5(str(args).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def _take(dataset: Dataset[Any], indices: np.ndarray) -> Dataset[Any]:
    if isinstance(dataset, TensorDataset):
        # Copies, so that a batch is one index operation and not a loop over images.
        chosen = torch.from_numpy(indices)
        return TensorDataset(*(tensor[chosen] for tensor in dataset.tensors))
    return Subset(dataset, indices.tolist())
