import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dap.runtime.seeding import derive_seed, uniform_noise

CPU = torch.device("cpu")


def test_seeds_depend_on_every_part():
    parts = [("a", 0, 1), ("a", 1, 0), ("b", 0, 1), ("a", 0), ("a",)]
    seeds = {derive_seed(*part) for part in parts}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed("gates", 0, 1) == 5897290520498553814  # alike on every machine, or runs cannot be repeated


@pytest.mark.parametrize("size", [1, 7, 100_001])
def test_noise_is_a_function_of_its_seed(size):
    a, b = (uniform_noise(3, CPU)(torch.empty(size)) for _ in range(2))
    assert torch.equal(a, b)
    assert not torch.equal(a, uniform_noise(4, CPU)(torch.empty(size)))


def test_noise_is_uniform_and_independent():
    draw = uniform_noise(0, CPU)
    first, second = draw(torch.empty(200_000)), draw(torch.empty(200_000))
    assert first.min() >= 0
    assert first.max() <= 1
    assert kstest(first.numpy(), "uniform").pvalue > 1e-3
    # neighbours share a draw of 64 bits; successive fills share a generator
    for a, b in [(first[::2], first[1::2]), (first, second)]:
        assert abs(np.corrcoef(a.numpy(), b.numpy())[0, 1]) < 0.01
