import json

import numpy as np
import pytest
import torch
from domainbed_splits import FILE, SIZES, digest
from torch.utils.data import Dataset, Subset, TensorDataset

from dap.data import Images, Suite, seed_hash, split, split_suite
from dap.data.decoding import Decoded
from dap.data.listing import Listing, Names
from dap.errors import DapError


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> int:
        return index**2


def numbers(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n), 10 * torch.arange(n))


def test_seed_hash_is_domainbeds() -> None:
    # `printf "(0, 1)" | md5sum` ends in 5a41ff51, and the remainder keeps the last 31 bits.
    assert seed_hash(0, 1) == 0x5A41FF51 == 1514274641
    # "(0,)" ends in bbcbfd1b, so its highest bit goes.
    assert seed_hash(0) == 0x3BCBFD1B
    assert seed_hash(0, 1) != seed_hash(1, 0)


def test_the_first_fifth_of_domainbeds_order_is_held_out() -> None:
    keys = list(range(23))
    np.random.RandomState(1514274641).shuffle(keys)
    train, held_out = split(numbers(23), domain_index=1, seed=0)
    assert held_out.tensors[0].tolist() == keys[:4]
    assert train.tensors[0].tolist() == keys[4:]


@pytest.mark.parametrize("holdout", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_split_is_a_partition(n: int, holdout: float) -> None:
    train, held_out = split(numbers(n), domain_index=2, seed=5, holdout=holdout)
    assert len(held_out) == int(holdout * n)
    assert sorted(torch.cat([train.tensors[0], held_out.tensors[0]]).tolist()) == list(range(n))
    for part in (train, held_out):
        assert torch.equal(part.tensors[1], 10 * part.tensors[0])


def test_split_depends_on_seed_and_domain_only() -> None:
    def order(domain_index: int, seed: int) -> list[int]:
        return split(numbers(50), domain_index, seed)[0].tensors[0].tolist()

    np.random.seed(0)  # noqa: NPY002  # the global state is what must not matter
    first = order(0, 0)
    np.random.seed(1)  # noqa: NPY002
    assert order(0, 0) == first
    assert order(1, 0) != first
    assert order(0, 1) != first


def test_parts_of_a_tensor_dataset_are_copies() -> None:
    whole = numbers(10)
    train, _ = split(whole, domain_index=0, seed=0)
    train.tensors[0].zero_()
    assert whole.tensors[0].sum() == 45


def test_other_datasets_become_subsets() -> None:
    train, held_out = split(Squares(), domain_index=0, seed=0)
    assert isinstance(train, Subset)
    assert isinstance(held_out, Subset)
    parts = [[part[i] for i in range(len(part))] for part in (train, held_out)]
    assert sorted(parts[0] + parts[1]) == [i**2 for i in range(11)]
    # The same images are held out whatever the kind of dataset.
    assert parts[1] == (split(numbers(11), 0, 0)[1].tensors[0] ** 2).tolist()


@pytest.mark.parametrize("holdout", [-0.1, 1.1])
def test_impossible_holdout_is_refused(holdout: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        split(numbers(10), 0, 0, holdout)
    with pytest.raises(ValueError, match="between 0 and 1"):
        split_suite(grouped({"a": [0, 1]}), 0, holdout)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("domain_index", range(4))
def test_splits_of_pacs_are_domainbeds(seed: int, domain_index: int) -> None:
    domain, size = list(SIZES.items())[domain_index]
    train, held_out = (part.tensors[0].tolist() for part in split(numbers(size), domain_index, seed))
    assert {"train": digest(train), "held_out": digest(held_out)} == json.loads(FILE.read_text())[str(seed)][domain]


def grouped(groups: dict[str, list[int]], unreadable: dict[str, list[int]] | None = None) -> Suite:
    """A suite of images that are never opened, in these groups."""
    domains = {}
    for domain, numbers in groups.items():
        names = Names(str(place) for place in range(len(numbers)))
        listing = Listing(names, np.zeros(len(numbers), np.int32), np.array(numbers, np.int32), "", open)
        readable = np.ones(len(numbers), bool)
        readable[(unreadable or {}).get(domain, [])] = False
        domains[domain] = Images(listing, Decoded(listing, 8, readable), np.arange(len(numbers)))
    return Suite("grouped", ("class",), domains, pixels=8)


def test_split_suite_counts_domains_from_zero_in_order() -> None:
    suite = Suite("numbers", (), {"a": numbers(30), "b": numbers(30)}, pixels=1)
    parts = split_suite(suite, seed=3)
    for index, domain in enumerate(suite.domains):
        for ours, theirs in zip(parts[domain], split(suite.domains[domain], index, 3), strict=True):
            assert torch.equal(ours[:][0], theirs[:][0])


def test_skipped_images_leave_all_others_on_their_side() -> None:
    suite, damaged = grouped({"a": [0] * 40}), grouped({"a": [0] * 40}, {"a": [3, 17, 21]})
    for side, expected in zip(split(damaged.domains["a"], 0, 0), split(suite.domains["a"], 0, 0), strict=True):
        assert side.names == [name for name in expected.names if name not in ("3", "17", "21")]
        assert set(side.skipped) == {"3", "17", "21"} & set(expected.names)


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_on_one_side_in_all_domains(seed: int) -> None:
    random = np.random.default_rng(seed)
    suite = grouped({domain: random.integers(0, 25, 60).tolist() for domain in "abc"})
    parts = split_suite(suite, seed)
    train, held_out = ({group for pair in parts.values() for group in pair[side].groups.tolist()} for side in (0, 1))
    assert not train & held_out
    for domain, (kept, out) in parts.items():
        assert len(kept) + len(out) == 60
        assert 0 < len(out) <= 12 or domain != "a"


def test_groups_by_hand() -> None:
    """Shuffled by the domain's own RandomState, taken in turn, passed over if too large; sides carry over."""
    sizes = {0: 4, 1: 1, 2: 2, 3: 13}
    suite = grouped({"a": [group for group, size in sizes.items() for _ in range(size)], "b": [2] * 8 + [7, 8]})
    order = [0, 1, 2, 3]
    np.random.RandomState(seed_hash(0, 0)).shuffle(order)
    room, expected = 4, set()
    for group in order:
        if sizes[group] <= room:
            expected.add(group)
            room -= sizes[group]
    parts = split_suite(suite, 0)
    assert set(parts["a"][1].groups.tolist()) == expected
    # Group 2 obeys its side in a, whatever its size in b.
    assert (2 in parts["b"][1].groups) == (2 in expected)


def test_one_group_only_cannot_be_split() -> None:
    with pytest.raises(DapError, match="no group of 'a' is small enough"):
        split_suite(grouped({"a": [5] * 20}), 0)
    assert len(split_suite(grouped({"a": [5] * 20}), 0, holdout=0.0)["a"][1]) == 0
