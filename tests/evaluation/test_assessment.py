import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dap.errors import DapError
from dap.evaluation.assessment import assess_logits, expected_calibration_error, predictions


def naive_error(confidence: list[float], right: list[bool], bins: int = 15) -> float:
    total = 0.0
    for number in range(bins):
        inside = [(c, r) for c, r in zip(confidence, right, strict=True) if number / bins < c <= (number + 1) / bins]
        if inside:
            gap = sum(r for _, r in inside) / len(inside) - sum(c for c, _ in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(gap)
    return total


@given(st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), min_size=1, max_size=60))
def test_calibration_error_is_that_of_the_naive_formula(rows):
    confidence, right = map(list, zip(*rows, strict=True))
    found = expected_calibration_error(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right))
    assert found == pytest.approx(naive_error(confidence, right), abs=1e-9)


def test_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
    found = assess_logits(logits, torch.tensor([0, 1, 1, 1]))
    p = torch.tensor(2.0, dtype=torch.float64).sigmoid().item()
    assert found.accuracy == 0.5
    assert found.classes == {0: 1.0, 1: pytest.approx(1 / 3)}
    assert found.worst_class == 1
    assert found.calibration_error == pytest.approx(p - 0.5)
    assert found.loss == pytest.approx(-(2 * torch.tensor(p).log() + 2 * torch.tensor(1 - p).log()).item() / 4)
    assert found.row()["worst_class_accuracy"] == pytest.approx(1 / 3)


def test_classes_that_do_not_occur_are_not_the_worst():
    found = assess_logits(torch.eye(5)[:2], torch.tensor([0, 1]))
    assert list(found.classes) == [0, 1]
    with pytest.raises(DapError, match="at least one image"):
        predictions(nn.Identity(), [])
