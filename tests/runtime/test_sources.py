import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dap.errors import DapError
from dap.runtime.sources import batch_stream, is_dataset, laid_out

IMAGES = TensorDataset(torch.arange(50.0).view(50, 1), torch.arange(50) % 3)


def first(count, stream):
    return [next(stream) for _ in range(count)]


def same(a, b):
    return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True))


class Augmented(Dataset):
    """Draws from all three global generators, as transforms in the wild do."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002
        return torch.tensor([index + noise]), index % 3


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([])

    def __len__(self):
        return 3


@pytest.mark.parametrize("dataset", [IMAGES, Augmented()])
def test_a_batch_is_a_function_of_seed_domain_and_step(dataset):
    whole = first(6, batch_stream("art", dataset, 8, seed=0))
    assert same(whole, first(6, batch_stream("art", dataset, 8, seed=0)))
    assert same(whole[4:], first(2, batch_stream("art", dataset, 8, seed=0, start=4)))
    assert not same(whole, first(6, batch_stream("art", dataset, 8, seed=1)))
    assert not same(whole, first(6, batch_stream("photo", dataset, 8, seed=0)))
    assert not same(whole[:3], whole[3:])


def test_the_callers_randomness_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first(2, batch_stream("art", Augmented(), 8, seed=0))
    assert torch.equal(torch.rand(3), expected)


def test_images_keep_their_labels():
    for inputs, labels in first(5, batch_stream("art", IMAGES, 16, seed=0)):
        assert torch.equal(inputs.squeeze(1).long() % 3, labels)
        assert inputs.shape == (16, 1)


def test_iterables_start_anew_and_skip_what_was_seen():
    batches = [(torch.full((1, 1), float(index)), torch.tensor([index])) for index in range(3)]
    values = [int(y) for _, y in first(7, batch_stream("art", batches, 8, seed=0))]
    assert values == [0, 1, 2, 0, 1, 2, 0]
    assert [int(y) for _, y in first(3, batch_stream("art", batches, 8, seed=0, start=5))] == [2, 0, 1]


def test_an_iterable_that_ends_is_named():
    once = iter([(torch.ones(1, 1), torch.tensor([0]))])
    stream = batch_stream("art", once, 8, seed=0)
    next(stream)
    with pytest.raises(DapError, match="'art' gave no more batches after 1"):
        next(stream)


def test_an_empty_domain_is_named():
    with pytest.raises(DapError, match="'art' is empty"):
        next(batch_stream("art", TensorDataset(torch.empty(0, 1), torch.empty(0).long()), 8, seed=0))
    with pytest.raises(DapError, match="'art' gave no more batches after 0"):
        next(batch_stream("art", [], 8, seed=0))


def test_what_counts_as_a_dataset():
    assert is_dataset(IMAGES)
    assert is_dataset(Augmented())
    assert not is_dataset(DataLoader(IMAGES))
    assert not is_dataset([(torch.ones(1), torch.ones(1))])
    assert not is_dataset(iter([]))
    assert not is_dataset(Streamed())


def test_pictures_are_laid_out_with_channels_last_and_nothing_else_changes():
    pictures = torch.randn(2, 3, 4, 5)
    assert torch.equal(laid_out(pictures), pictures)
    assert laid_out(pictures).is_contiguous(memory_format=torch.channels_last)
    rows = torch.randn(2, 3)
    assert torch.equal(laid_out(rows), rows)
    assert laid_out(rows).data_ptr() != rows.data_ptr()  # a model may change its inputs in place
