from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dap.errors import DapError
from dap.method.sensitivities import SignAgreement


def pair_sum(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The paper's sum, pair by pair."""
    count = len(gradients)
    pairs = sum(torch.sign(a) * torch.sign(b) for a, b in combinations(gradients, 2))
    return -2 / (count * (count - 1)) * pairs  # pyright: ignore


def names(count: int) -> list[str]:
    return [f"domain {index}" for index in range(count)]


def counted(gradients: list[torch.Tensor]) -> SignAgreement:
    signs = SignAgreement(len(gradients[0]), names(len(gradients)), torch.device("cpu"), {})
    for domain, gradient in zip(names(len(gradients)), gradients, strict=True):
        signs.add(domain, slice(0, 3), gradient[:3])
        signs.add(domain, slice(3, None), gradient[3:])
    return signs


@given(st.integers(2, 6) | st.sampled_from([11, 12, 40, 127]), st.randoms(use_true_random=False))
def test_equals_the_pair_sum(domains, random):
    gradients = [
        torch.tensor([random.choice([-2.0, -1e-30, 0.0, 0.0, 1e-30, 3.0]) for _ in range(8)]) for _ in range(domains)
    ]
    torch.testing.assert_close(counted(gradients).score(), pair_sum(gradients))


def test_hand_computed():
    gradients = [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, -1.0, 0.0], [1.0, -1.0, 0.0, 0.0]]
    signs = counted([torch.tensor(gradient) for gradient in gradients])
    # all agree; one against two; one against one and a zero; all zero
    torch.testing.assert_close(signs.score(), torch.tensor([-1.0, 1 / 3, 1 / 3, 0.0]))


@pytest.mark.parametrize("domains", [2, 11, 12, 127])
def test_full_agreement_does_not_wrap_around(domains):
    assert counted([torch.ones(4)] * domains).score().tolist() == pytest.approx([-1] * 4)


def test_too_many_domains_are_refused():
    with pytest.raises(DapError, match="at most 127 domains, not 128"):
        SignAgreement(1, names(128), torch.device("cpu"), {})
