"""Hyper-parameters drawn from ranges, and the ranges that DomainBed draws from."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dap.objectives import OBJECTIVES
from dap.specs.ranges import Choice, LogUniform

ENTRIES = [(name, key) for name, kind in OBJECTIVES.items() for key in kind.search]
MANY = 2000

# DomainBed's hparams_registry, for images of full size: the default, and the range that is drawn from; MIRO's paper's.
ADVERSARIAL = {
    "weight": (1.0, LogUniform(-2, 2)),
    "discriminator_steps": (1, LogUniform(0, 3, base=2, whole=True)),
    "gradient_penalty": (0.0, LogUniform(-2, 1)),
    "beta1": (0.5, Choice((0.0, 0.5))),
    "width": (256, LogUniform(6, 10, base=2, whole=True)),
    "depth": (3, Choice((3, 4, 5))),
    "dropout": (0.0, Choice((0.0, 0.1, 0.5))),
    "discriminator_rate": (None, LogUniform(-5, -3.5)),  # by default the model's
}
REGISTRY = {
    "erm": {},
    "irm": {"weight": (100.0, LogUniform(-1, 5)), "anneal": (500, LogUniform(0, 4, whole=True))},
    "group_dro": {"step_size": (0.01, LogUniform(-3, -1))},
    "mixup": {"alpha": (0.2, LogUniform(-1, 1))},
    "mldg": {"weight": (1.0, LogUniform(-1, 1)), "meta_test": (2, Choice((1, 2)))},
    "coral": {"weight": (1.0, LogUniform(-1, 1))},
    "mmd": {"weight": (1.0, LogUniform(-1, 1))},
    "dann": ADVERSARIAL,
    "cdann": ADVERSARIAL,
    "miro": {"weight": (0.1, Choice((1.0, 0.1, 0.01, 0.001)))},
}


@given(
    st.floats(-6, 4),
    st.floats(0, 6),
    st.sampled_from([2.0, 10.0]),
    st.integers(0, 2**32 - 1),
)
def test_a_draw_stays_in_range(low, more, base, seed):
    value = LogUniform(low, low + more, base).draw(np.random.default_rng(seed))
    assert isinstance(value, float)
    assert base**low * (1 - 1e-12) <= value <= base ** (low + more) * (1 + 1e-12)


@given(st.integers(0, 5), st.integers(1, 5), st.sampled_from([2.0, 10.0]), st.integers(0, 2**32 - 1))
def test_whole_numbers_are_whole(low, more, base, seed):
    value = LogUniform(low, low + more, base, whole=True).draw(np.random.default_rng(seed))
    assert type(value) is int
    assert base**low <= value <= base ** (low + more)


def test_whole_numbers_are_rounded_down():
    # int(2**u), u uniform in [0, 3): 1 up to 7, with 1 for a third of the draws, and 8 never.
    rng = np.random.default_rng(0)
    draws = [LogUniform(0, 3, base=2, whole=True).draw(rng) for _ in range(MANY)]
    assert set(draws) == set(range(1, 8))
    assert draws.count(1) / MANY == pytest.approx(1 / 3, abs=0.05)


def test_draws_are_uniform_in_the_exponent():
    rng = np.random.default_rng(0)
    exponents = sorted(math.log10(LogUniform(-1, 5).draw(rng)) for _ in range(MANY))
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert exponents[int(share * MANY)] == pytest.approx(-1 + 6 * share, abs=0.3)


def test_every_choice_is_drawn_as_often():
    rng = np.random.default_rng(0)
    draws = [Choice((3, 4, 5)).draw(rng) for _ in range(MANY)]
    assert all(type(value) is int for value in draws)  # as given, not numpy's
    assert all(draws.count(value) / MANY == pytest.approx(1 / 3, abs=0.05) for value in (3, 4, 5))


@pytest.mark.parametrize(("name", "key"), ENTRIES)
def test_the_same_generator_gives_the_same_draws(name, key):
    found = OBJECTIVES[name].search[key]
    first, second, other = ([found.draw(rng) for _ in range(30)] for rng in map(np.random.default_rng, (5, 5, 6)))
    assert first == second != other


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_range_is_of_an_argument_and_its_draws_construct(name):
    kind = OBJECTIVES[name]
    assert set(kind.search) <= set(inspect.signature(kind).parameters)
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = {key: range_.draw(rng) for key, range_ in kind.search.items()}
        objective = kind(**drawn)
        for key, value in drawn.items():  # under its own name, as DANN's beta1 among the betas, or as its rate
            kept = [getattr(objective, other, None) for other in (key, key.removeprefix("discriminator_"))]
            assert value in [*kept, *objective.betas]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranges_and_defaults_are_domainbeds(name):
    kind = OBJECTIVES[name]
    assert dict(kind.search) == {key: range_ for key, (_, range_) in REGISTRY[name].items()}
    parameters = inspect.signature(kind).parameters
    assert {key: parameters[key].default for key in kind.search} == {key: d for key, (d, _) in REGISTRY[name].items()}
