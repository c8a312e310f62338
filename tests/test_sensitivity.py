from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dap.errors import DapError
from dap.sensitivity import SignCount, sensitivity

PIECES = [(slice(0, 3), 1), (slice(3, 8), 1)]


def pair_sum(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The paper's sum, pair by pair."""
    count = len(gradients)
    pairs = sum(torch.sign(a) * torch.sign(b) for a, b in combinations(gradients, 2))
    return -2 / (count * (count - 1)) * pairs  # pyright: ignore


@settings(deadline=None)
@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_equals_the_pair_sum(domains, random):
    gradients = [
        torch.tensor([random.choice([-2.0, -1e-30, 0.0, 0.0, 1e-30, 3.0]) for _ in range(8)]) for _ in range(domains)
    ]
    signs = SignCount(8, torch.device("cpu"))
    for gradient in gradients:
        signs.add(gradient)
    torch.testing.assert_close(sensitivity(signs.positive, signs.negative, domains), pair_sum(gradients))


def test_hand_computed():
    signs = SignCount(4, torch.device("cpu"))
    for gradient in ([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, -1.0, 0.0], [1.0, -1.0, 0.0, 0.0]):
        signs.add(torch.tensor(gradient))
    # all agree; one against two; one against one and a zero; all zero
    torch.testing.assert_close(sensitivity(signs.positive, signs.negative, 3), torch.tensor([-1.0, 1 / 3, 1 / 3, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_moving_average(dtype):
    average, expected = torch.zeros(8, dtype=dtype), torch.zeros(8)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        gradients = [torch.randn(8, generator=generator) for _ in range(3)]
        signs = SignCount(8, torch.device("cpu"))
        for gradient in gradients:
            signs.add(gradient)
        signs.update(average, 0.92, PIECES)
        expected = 0.92 * expected + 0.08 * pair_sum(gradients)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(average.float(), expected, rtol=0, atol=2e-3 if dtype == torch.float16 else 1e-6)


def test_half_precision_reaches_the_ends():
    average = torch.zeros(8, dtype=torch.float16)
    signs = SignCount(8, torch.device("cpu"))
    signs.add(torch.ones(8))
    signs.add(torch.ones(8))
    for _ in range(200):
        signs.update(average, 0.92, PIECES)
    assert (average + 1).abs().max() < 0.005


def test_too_many_domains_do_not_wrap_around():
    signs = SignCount(1, torch.device("cpu"))
    for _ in range(127):
        signs.add(torch.ones(1))
    assert sensitivity(signs.positive, signs.negative, 127).item() == pytest.approx(-1)
    with pytest.raises(DapError, match="127"):
        signs.add(torch.ones(1))
