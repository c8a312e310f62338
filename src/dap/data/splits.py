"""Which images of a domain are held out: DomainBed's rule, so that numbers can be compared with its tables."""

from collections.abc import Sized
from hashlib import md5
from typing import Any, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from dap.data.images import Images
from dap.data.suites import Suite
from dap.errors import DapError


@overload
def split(
    dataset: TensorDataset, domain_index: int, seed: int, holdout: float = 0.2
) -> tuple[TensorDataset, TensorDataset]: ...
@overload
def split(dataset: Images, domain_index: int, seed: int, holdout: float = 0.2) -> tuple[Images, Images]: ...
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
    _refuse_impossible(holdout)
    order = np.arange(_listed(dataset))
    np.random.RandomState(seed_hash(seed, domain_index)).shuffle(order)
    held_out = int(holdout * len(order))
    return _take(dataset, order[held_out:]), _take(dataset, order[:held_out])


def split_suite(suite: Suite, seed: int, holdout: float = 0.2) -> dict[str, tuple[Dataset[Any], Dataset[Any]]]:
    """Each domain's training part and held-out part.

    Images of one group stay together, in all domains: see `_split_groups`.

    >>> from dap.data import load_suite
    >>> train, held_out = split_suite(load_suite("digits"), seed=0)["plain"]
    >>> len(train), len(held_out)
    (360, 89)
    """
    _refuse_impossible(holdout)
    sides: dict[int, bool] = {}
    parts: dict[str, tuple[Dataset[Any], Dataset[Any]]] = {}
    for index, (domain, dataset) in enumerate(suite.domains.items()):
        if isinstance(dataset, Images) and dataset.listed_groups is not None:
            train, held_out = _split_groups(dataset, seed_hash(seed, index), holdout, sides)
            parts[domain] = train, held_out
            if holdout > 0 and len(held_out.listed) == 0:
                raise DapError(f"no group of {domain!r} is small enough to be held out: raise holdout from {holdout}")
        else:
            parts[domain] = split(dataset, index, seed, holdout)
    return parts


def seed_hash(*args: object) -> int:
    """A seed in [0, 2³¹) made from anything that prints; the same as `domainbed.lib.misc.seed_hash`.

    >>> seed_hash(0, 1)
    1514274641
    """
    # Not for secrecy, so that it also works where md5 is forbidden for that.
    return int(md5(str(args).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def _split_groups(images: Images, seed: int, holdout: float, sides: dict[int, bool]) -> tuple[Images, Images]:
    """Holds out whole groups in DomainBed's shuffled order, but none that would make more than `holdout` of the images.

    `sides` says which groups of earlier domains were held out; it is obeyed, and filled.
    """
    groups = images.listed_groups
    assert groups is not None
    names, counts = np.unique(groups, return_counts=True)
    sizes = dict(zip(names.tolist(), counts.tolist(), strict=True))
    order = names.tolist()
    np.random.RandomState(seed).shuffle(order)
    room = int(holdout * len(groups)) - sum(size for group, size in sizes.items() if sides.get(group))
    for group in order:
        if group not in sides:
            sides[group] = sizes[group] <= room
            room -= sizes[group] * sides[group]
    held_out = np.array([sides[group] for group in groups.tolist()], bool)
    return images.with_listed(images.listed[~held_out]), images.with_listed(images.listed[held_out])


def _refuse_impossible(holdout: float) -> None:
    if not 0.0 <= holdout <= 1.0:
        raise DapError(f"holdout is a share of the images, between 0 and 1, not {holdout}")


def _listed(dataset: Dataset[Any]) -> int:
    # Torch does not promise the length that every dataset here has.
    return len(dataset.listed) if isinstance(dataset, Images) else len(cast(Sized, dataset))


def _take(dataset: Dataset[Any], indices: np.ndarray) -> Dataset[Any]:
    if isinstance(dataset, Images):
        return dataset.with_listed(dataset.listed[indices])
    if isinstance(dataset, TensorDataset):
        # Copies, so that a batch is one index operation and not a loop over images.
        chosen = torch.from_numpy(indices)
        return TensorDataset(*(tensor[chosen] for tensor in dataset.tensors))
    return Subset(dataset, indices.tolist())
