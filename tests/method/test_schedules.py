from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_batches, make_classifier
from dap.config import PacedSchedule, PaperSchedule, PruneConfig
from dap.method.schedules import Observation, PacedCoefficient, PaperCoefficient, make_coefficient, temperature
from dap.method.step import Pruner
from dap.objectives import OBJECTIVES


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 2.0), (50, 0.774596669), (100, 0.3), (1, 1.962415), (130, 0.3)],  # 2·0.15^(t/100) by hand
)
def test_temperature(step, expected):
    assert temperature(step, 100, 2.0, 0.3) == pytest.approx(expected, rel=1e-6)


def seen(step=1, task_loss=0.5, sparsity=0.05, task_gradient=1e-6, slope=1e-9):
    return Observation(step, task_loss, sparsity, task_gradient, slope)


def test_paper_coefficient_by_hand():
    coefficient = PaperCoefficient(PaperSchedule(), 0.999)
    # progress 1 + 6·0.5/0.999 = 4.003003; difficulty 0.5^-1.2 - 1 = 1.297397; ratio 0.01/0.249001/0.1 = 0.401605
    assert coefficient(seen(task_loss=0.01, sparsity=0.5)) == pytest.approx(6.257181, rel=1e-5)
    # ratio clipped to 1: 3·(1 + 6·0.6/0.999)·(0.4^-1.2 - 1) = 27.658; 0.92·6.257181 + 0.08·27.658
    second = 3 * (1 + 6 * 0.6 / 0.999) * (0.4**-1.2 - 1)
    assert coefficient(seen(task_loss=5, sparsity=0.6)) == pytest.approx(0.92 * 6.257181 + 0.08 * second, rel=1e-5)


def test_paper_coefficient_is_clamped_but_its_average_is_not():
    coefficient = PaperCoefficient(PaperSchedule(), 0.999)
    assert coefficient(seen(sparsity=0.0)) == 0.5  # difficulty is 0 there
    assert coefficient.state == pytest.approx(0, abs=1e-6)
    for _ in range(200):
        last = coefficient(seen(task_loss=5, sparsity=0.99))
    assert last == 50
    assert coefficient.state is not None
    assert coefficient.state > 50
    assert coefficient.target(1) == coefficient.target(10**6) == 0.999


@given(st.floats(-1e6, 0), st.floats(0.05, 0.998))
def test_the_papers_schedule_with_a_negative_base_loss(task_loss, sparsity):
    schedule = PaperSchedule(range=(0.0, 1e6))
    value = PaperCoefficient(schedule, 0.999)(seen(task_loss=task_loss, sparsity=sparsity))
    others = 3 * (1 + 6 * sparsity / 0.999) * ((1 - sparsity) ** -1.2 - 1)
    assert value == pytest.approx(0.01 * others, rel=1e-4)  # the ratio is r_min, however negative the loss


@pytest.mark.parametrize(("sparsity", "expected"), [(0.05, 0.5), (0.69, 0.5), (0.7, 0.505984), (0.9, 2.853402)])
def test_a_negative_base_loss_leaves_the_coefficient_at_its_floor_up_to_70_percent(sparsity, expected):
    coefficient = PaperCoefficient(PaperSchedule(), 0.999)
    assert coefficient(seen(task_loss=-0.1, sparsity=sparsity)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["miro", "dann", "cdann"])
def test_the_papers_schedule_prunes_although_the_base_loss_is_negative(name):
    model, batches = make_classifier(), make_batches()
    objective = OBJECTIVES[name](weight=10.0)
    objective.prepare(model, tuple(batches), model.classes)
    config = PruneConfig(coefficient="paper", steps=20, learning_rate=0.1, alpha=0.0)
    pruner = Pruner(model, config, objective)
    stats = [pruner.step(batches) for _ in range(20)]
    assert all(each.loss < 0 for each in stats)
    assert {each.coefficient for each in stats} == {0.5}
    assert all(now.expected_sparsity < later.expected_sparsity for now, later in pairwise(stats))


def test_paced_path():
    coefficient = PacedCoefficient(PacedSchedule(share=0.9, start=1.0, curve=1.0), 0.05, 0.95, steps=100)
    assert coefficient.target(0) == pytest.approx(0.05)
    assert coefficient.target(45) == pytest.approx(0.5)
    assert coefficient.target(90) == coefficient.target(100) == pytest.approx(0.95)


def test_a_curved_path_slows_down_near_the_target():
    coefficient = PacedCoefficient(PacedSchedule(share=0.9, start=1.0, curve=2.0), 0.05, 0.95, steps=100)
    assert coefficient.target(45) == pytest.approx(0.95 - 0.9 * 0.25)
    path = [coefficient.target(step) for step in range(101)]
    gains = [b - a for a, b in pairwise(path)]
    assert all(now >= later - 1e-12 for now, later in pairwise(gains))
    assert path[90] == path[100] == pytest.approx(0.95)


def test_a_path_may_be_slow_at_both_ends():
    coefficient = PacedCoefficient(PacedSchedule(share=0.9, start=2.0, curve=2.5), 0.05, 0.95, steps=100)
    assert coefficient.target(0) == pytest.approx(0.05)
    assert coefficient.target(45) == pytest.approx(0.95 - 0.9 * 0.75**2.5)
    path = [coefficient.target(step) for step in range(91)]
    gains = [b - a for a, b in pairwise(path)]
    fastest = gains.index(max(gains))
    assert 0 < fastest < 60
    assert gains[:fastest] == sorted(gains[:fastest])
    assert gains[fastest:] == sorted(gains[fastest:], reverse=True)
    assert path[90] == coefficient.target(100) == pytest.approx(0.95)


@given(st.floats(1e-9, 1), st.floats(1e-12, 1e-2))
def test_paced_balances_the_mean_gradients_at_its_tolerance(task_gradient, slope):
    coefficient = PacedCoefficient(PacedSchedule(tolerance=0.02, start=1.0, curve=1.0), 0.05, 0.95, steps=100)
    value = coefficient(seen(task_gradient=task_gradient, slope=slope))
    assert value * 2 * 0.02 * slope == pytest.approx(task_gradient)


def test_paced_smooths_the_task_gradient():
    coefficient = PacedCoefficient(PacedSchedule(smoothing=0.9, start=1.0, curve=1.0), 0.05, 0.95, steps=100)
    coefficient(seen(task_gradient=1.0))
    coefficient(seen(task_gradient=2.0))
    assert coefficient.state == pytest.approx(1.1)


def test_paced_goes_on_where_the_task_has_no_gradient():
    assert PacedCoefficient(PacedSchedule(start=1.0, curve=1.0), 0.05, 0.95, 100)(seen(task_gradient=0.0)) > 0


def test_configuration_chooses():
    assert isinstance(make_coefficient(PruneConfig(coefficient="paper").resolved()), PaperCoefficient)
    paced = make_coefficient(PruneConfig(p_init=0.9, target_sparsity=0.8, steps=10).resolved())
    assert isinstance(paced, PacedCoefficient)
    assert paced.target(0) == pytest.approx(0.1)
    assert paced.target(10) == pytest.approx(0.8)
