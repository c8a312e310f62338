import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from dap.data import seed_hash, split


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
