"""Against values worked out by hand, and against every resample one by one."""

from itertools import product
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dap.report.statistics import Difference, bootstrap_interval, image_interval, mean_of, over_domains, paired


def test_mean_spread_and_standard_error():
    found = mean_of([0.2, 0.4, 0.9])
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert found.spread == pytest.approx(0.3605551275463989)  # √((0.09 + 0.01 + 0.16) / 2)
    assert found.error == pytest.approx(0.3605551275463989 / 3**0.5)
    one = mean_of([0.7])
    assert one is not None
    assert (one.mean, one.spread, one.error, one.seeds) == (0.7, None, None, 1)
    assert mean_of([]) is None


def test_of_two_values_the_interval_is_their_range():
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)  # each end has a chance of 1 in 4
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5)  # of 0.3 at either side, 0.25 are the ends


def test_of_three_values_the_interval_is_their_range():
    assert bootstrap_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)  # 1 in 27 is more than 2.5 %
    # At 90 %, 5 % may be cut off: 1 in 27 is, and 4 in 27 (an end, and one of its three neighbours) is not.
    assert bootstrap_interval([1.0, 2.0, 3.0], level=0.9) == pytest.approx((4 / 3, 8 / 3))


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=4), st.sampled_from([0.5, 0.8, 0.95]))
def test_it_is_that_of_every_resample(values, level):
    means = sorted(fmean(drawn) for drawn in product(values, repeat=len(values)))
    tail = (1 - level) / 2

    def quantile(share):
        return next(mean for place, mean in enumerate(means, 1) if place / len(means) >= share - 1e-9)

    assert bootstrap_interval(values, level) == pytest.approx((quantile(tail), quantile(1 - tail)))


def test_many_values_are_resampled_at_random_and_the_same_way_each_time():
    values = [place / 40 for place in range(40)]
    low, high = bootstrap_interval(values)
    assert bootstrap_interval(values) == (low, high)
    error = stdev(values) / 40**0.5
    assert low == pytest.approx(fmean(values) - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(fmean(values) + 1.96 * error, abs=0.2 * error)


def test_differences_are_paired_by_seed():
    found = paired({0: 0.5, 1: 0.9, 2: 0.4}, {1: 0.6, 0: 0.4, 3: 0.0})
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.1, 0.3))
    assert found.seeds == 2
    assert found.sure
    assert paired({0: 0.5}, {1: 0.5}) is None
    assert paired({0: 0.5}, {0: 0.25}) == Difference(0.25, None, None, 1)
    assert not paired({0: 0.5}, {0: 0.25}).sure  # one seed says nothing
    assert not paired({0: 0.5, 1: 0.1}, {0: 0.25, 1: 0.2}).sure


def test_a_seed_without_a_domain_has_no_mean():
    assert over_domains({0: {"a": 0.2, "b": 0.4}, 1: {"a": 1.0}}, {"a", "b"}) == {0: pytest.approx(0.3)}


def differences(better: int, worse: int, same: int) -> np.ndarray:
    return np.array([1] * better + [-1] * worse + [0] * same)


def test_over_images_the_interval_is_that_of_a_mean():
    low, high = image_interval([[differences(200, 80, 1720)]])
    error = ((0.14 - 0.06**2) / 2000) ** 0.5
    assert (low, high) == pytest.approx((0.06 - 1.96 * error, 0.06 + 1.96 * error), abs=0.002)
    # Two domains: the mean of both, with half the variance.
    low, high = image_interval([[differences(200, 80, 1720)] * 2])
    assert high - low == pytest.approx(2 * 1.96 * error / 2**0.5, abs=0.003)


def test_without_noise_in_the_images_the_seeds_are_what_varies():
    trials = [[differences(50, 0, 0)], [differences(0, 0, 50)], [differences(0, 50, 0)]]
    assert image_interval(trials) == bootstrap_interval([1.0, 0.0, -1.0])


def test_seeds_and_images_vary_together():
    same = [[differences(60, 20, 120)]] * 3
    alone = image_interval(same[:1])
    assert np.diff(image_interval(same)) == pytest.approx(np.diff(alone) / 3**0.5, rel=0.1)


def test_a_difference_is_over_images_where_all_are_known():
    ours, theirs = {0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.25}
    images = {0: [differences(1, 0, 3)], 1: [differences(2, 0, 2)]}
    found = paired(ours, theirs, images)
    assert found is not None
    assert found.mean == 0.375
    assert (found.low, found.high) == image_interval(list(images.values()))
    assert paired(ours, theirs, {0: images[0]}) == paired(ours, theirs)
    single = paired({0: 0.5}, {0: 0.25}, images)
    assert single is not None
    assert single.low is not None
