"""Property tests: the same examples in `make test`, many new ones in `make test-slow`."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parent


def drawn(profile: settings) -> list[int]:
    """The examples that a property test tries."""
    seen = []

    @profile
    @given(st.integers())
    def remember(value):
        seen.append(value)

    remember()
    return seen


def test_the_default_profile_tries_the_same_examples_every_time():
    same = settings.get_profile("same")
    assert drawn(same) == drawn(same)


def test_the_other_profile_tries_many_new_ones_in_each_run():
    explore = settings.get_profile("explore")
    assert explore.max_examples >= 20 * settings.get_profile("same").max_examples
    fewer = settings(explore, max_examples=50, database=None)
    assert drawn(fewer) != drawn(fewer)


def test_exploring_is_part_of_the_slow_tests():
    (recipe,) = re.findall(r"^test-slow:.*\n\t(.*)", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)
    assert '-m "slow or hypothesis"' in recipe  # hypothesis marks what has @given
    assert "--hypothesis-profile explore" in recipe


def test_no_test_sets_its_own_number_of_examples():
    files = {*TESTS.rglob("test_*.py")} - {Path(__file__)}
    assert files
    assert not [file.name for file in files if re.search(r"max_examples=\d+[,)]", file.read_text())]


@pytest.mark.parametrize("_", range(2))
def test_every_test_starts_with_the_same_random_numbers(_):
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
