"""Selection looks at the sources alone; the oracle is a yardstick beside it."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dap.errors import DapError
from dap.evaluation.oracle import TargetScore, oracle
from dap.training import selection
from dap.training.selection import LeftOutScore, SourceScore, leave_one_domain_out, training_domain_validation


def scored(step: int, *accuracies: float, loss: float = 1.0) -> SourceScore:
    return SourceScore(step, dict(zip("abcdef", accuracies, strict=False)), {"a": loss})


# ---- training-domain validation


def test_the_best_mean_over_sources_wins_not_the_best_domain():
    best = scored(300, 0.7, 0.7, 0.7)
    assert training_domain_validation([scored(1, 1.0, 0.2, 0.2), best, scored(600, 0.0, 1.0, 1.0)]) is best


def test_the_loss_has_no_say():
    assert training_domain_validation([scored(1, 0.5, loss=0.1), scored(2, 0.6, loss=9.0)]).step == 2


def test_of_equals_the_earliest_wins_in_whatever_order_they_come():
    scores = [scored(900, 0.5, 0.75), scored(300, 0.75, 0.5), scored(600, 0.625, 0.625)]
    assert training_domain_validation(scores).step == 300
    assert training_domain_validation(scores[::-1]).step == 300


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8))
def test_is_the_first_maximum_of_the_means(table):
    # Quarters are exact: equal means are equal numbers.
    scores = [scored(step, *(count / 4 for count in row)) for step, row in enumerate(table)]
    totals = [sum(row) for row in table]
    assert training_domain_validation(scores).step == totals.index(max(totals))


def test_means():
    score = SourceScore(1, {"a": 0.25, "b": 0.75}, {"a": 1.0, "b": 4.0})
    assert (score.mean_accuracy, score.mean_loss) == (0.5, 2.5)


def test_nothing_to_choose_from_is_said():
    with pytest.raises(DapError, match="no checkpoint to choose from"):
        training_domain_validation([])


def test_selection_cannot_receive_target_numbers():
    # By type: none of its functions and classes mentions what a target scored, or knows the oracle.
    assert not {"oracle", "TargetScore"} & set(vars(selection))
    for kind in (SourceScore, LeftOutScore):
        assert not any("target" in name for name in inspect.signature(kind).parameters)


# ---- leave one domain out


def left_out(**accuracies: float) -> list[LeftOutScore]:
    return [LeftOutScore(domain, accuracy) for domain, accuracy in accuracies.items()]


def test_the_setting_with_the_best_mean_over_left_out_domains_wins():
    settings = {
        "one": left_out(a=1.0, b=0.1, c=0.1),
        "two": left_out(c=0.5, a=0.5, b=0.5),
        "three": left_out(a=0, b=0, c=1),
    }
    assert leave_one_domain_out(settings) == "two"


def test_of_equal_settings_the_first_wins():
    assert leave_one_domain_out({"x": left_out(a=0.25, b=0.75), "y": left_out(a=0.5, b=0.5)}) == "x"
    assert leave_one_domain_out({"y": left_out(a=0.5, b=0.5), "x": left_out(a=0.25, b=0.75)}) == "y"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (left_out(a=0.9), r"'broken' needs every source domain left out once; missing: \['b'\]"),
        ([], r"'broken' .* missing: \['a', 'b'\]"),
        (left_out(a=0.9) + left_out(a=0.8, b=0.7), "'broken' .* one twice"),
    ],
)
def test_incomplete_tables_are_refused(broken, message):
    with pytest.raises(DapError, match=message):
        leave_one_domain_out({"whole": left_out(a=0.5, b=0.5), "broken": broken})


@pytest.mark.parametrize("settings", [{}, {"one": [], "two": []}])
def test_tables_without_numbers_are_refused(settings):
    with pytest.raises(DapError):
        leave_one_domain_out(settings)


# ---- the oracle


def test_the_oracle_takes_last_checkpoints_only():
    early = [TargetScore(300, 0.9, 0.95), TargetScore(600, 0.4, 0.41)]
    late = [TargetScore(300, 0.1, 0.12), TargetScore(600, 0.5, 0.49)]
    assert oracle([early, late]) == TargetScore(600, 0.5, 0.49)
    assert oracle([early[::-1], late[::-1]]) == TargetScore(600, 0.5, 0.49)  # last by step, not by place


def test_the_oracle_chooses_by_the_held_out_split_and_reports_the_rest():
    assert oracle([[TargetScore(1, 0.6, 0.2)], [TargetScore(1, 0.5, 0.9)]]).rest == 0.2


@pytest.mark.parametrize("trials", [[], [[], []]])
def test_an_oracle_without_numbers_is_refused(trials):
    with pytest.raises(DapError, match="at least one evaluated checkpoint"):
        oracle(trials)


def test_a_trial_without_checkpoints_does_not_count():
    assert oracle([[], [TargetScore(1, 0.5, 0.4)]]).step == 1
