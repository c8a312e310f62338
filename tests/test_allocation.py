import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dap.allocation import global_masks, keep_count, keep_top, keep_top_weighted
from dap.errors import DapError


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_keeps_exactly_the_largest_and_the_first_of_equals(values, data):
    keep = data.draw(st.integers(0, len(values)))
    mask = keep_top(torch.tensor(values, dtype=torch.float32), keep)
    order = sorted(range(len(values)), key=lambda at: (-values[at], at))  # a stable sort, the plain way
    assert mask.nonzero().flatten().tolist() == sorted(order[:keep])


@pytest.mark.parametrize(
    ("total", "sparsity", "keep"), [(10, 0.25, 8), (10, 0.3, 7), (10, 0, 10), (10, 1, 0), (11_170_496, 0.8, 2_234_099)]
)
def test_count(total, sparsity, keep):
    assert keep_count(total, sparsity) == keep


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, float("nan")])
def test_a_sparsity_is_a_share(sparsity):
    with pytest.raises(DapError, match="sparsity is"):
        keep_count(10, sparsity)


def test_nan_scores_are_refused():
    with pytest.raises(DapError, match="NaN"):
        keep_top(torch.tensor([1.0, float("nan"), 0.0]), 1)


def test_weighted():
    scores, sizes = torch.tensor([5.0, 4.0, 3.0, 2.0]), torch.tensor([2, 3, 2, 3])
    assert keep_top_weighted(scores, sizes, 7).tolist() == [True, True, True, False]
    assert keep_top_weighted(scores, sizes, 6).tolist() == [True, True, False, False]


def test_global_masks_cut_across_layers():
    masks = global_masks({"a": torch.tensor([[9.0, 8.0]]), "b": torch.tensor([1.0, 7.0])}, 0.25)
    assert masks["a"].tolist() == [[True, True]]
    assert masks["b"].tolist() == [False, True]
