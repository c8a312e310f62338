"""Means over seeds with their spread, and paired differences with a bootstrap interval."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np

Key = TypeVar("Key")

LEVEL = 0.95  # of intervals
ENOUGH = 6  # seeds; of fewer, intervals leave the truth out far too often
_EXACT = 8  # values of which every resample is looked at: 6435
_DRAWS = 20_000  # resamples of more
_IMAGE_DRAWS = 2_000  # of trials and their images


@dataclass(frozen=True)
class Mean:
    """Over seeds."""

    mean: float
    spread: float | None  # the standard deviation; None of one seed
    seeds: int
    missing: int = 0  # seeds that are not there, or lack an unseen domain and are left out
    remark: str = ""  # shown behind it

    @property
    def error(self) -> float | None:
        """The standard error, which DomainBed's tables have after their ±."""
        return None if self.spread is None else self.spread / math.sqrt(self.seeds)


@dataclass(frozen=True)
class Difference:
    """Between two things that were measured with the same seeds."""

    mean: float
    low: float | None  # of the interval, over images too where they are known; else None of one seed
    high: float | None
    seeds: int

    @property
    def sure(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def over_domains(trials: Mapping[int, Mapping[Any, float]], every: Collection[Any]) -> dict[int, float]:
    """By seed, the mean over unseen domains. A seed that lacks one of them has none: its mean would be of others.

    >>> over_domains({0: {"a": 0.25, "b": 0.75}, 1: {"a": 0.25}}, {"a", "b"})
    {0: 0.5}
    """
    return {seed: fmean(found.values()) for seed, found in trials.items() if set(found) == set(every)}


def mean_of(values: Sequence[float], missing: int = 0) -> Mean | None:
    """None of no values: what is missing is no 0.

    >>> mean_of([0.25, 0.75, 0.5])
    Mean(mean=0.5, spread=0.25, seeds=3, missing=0, remark='')
    """
    if not values:
        return None
    return Mean(fmean(values), stdev(values) if len(values) > 1 else None, len(values), missing)


def of_both(ours: Mapping[Key, float], theirs: Mapping[Key, float]) -> tuple[dict[Key, float], dict[Key, float]]:
    """What both have."""
    keys = [key for key in ours if key in theirs]
    return {key: ours[key] for key in keys}, {key: theirs[key] for key in keys}


def paired(
    ours: Mapping[Key, float], theirs: Mapping[Key, float], images: Mapping[Key, Sequence[np.ndarray]] | None = None
) -> Difference | None:
    """Ours less theirs, over what both have; None where there is nothing.

    `images` has, by the same keys and for every domain, 1 for an image that we alone have right, −1 for one that they
    alone have, else 0. Where it is known for all, the interval is over keys and images, else over keys alone.

    >>> paired({0: 0.5, 1: 1.0}, {0: 0.25, 1: 0.25, 2: 0.5})
    Difference(mean=0.5, low=0.25, high=0.75, seeds=2)
    """
    ours, theirs = of_both(ours, theirs)
    differences = [ours[key] - theirs[key] for key in ours]
    if not differences:
        return None
    low = high = None
    if images is not None and all(key in images for key in ours):
        low, high = image_interval([images[key] for key in ours])
    elif len(differences) > 1:
        low, high = bootstrap_interval(differences)
    return Difference(fmean(differences), low, high, len(differences))


def bootstrap_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval of the mean: exactly, by every resample, of up to 8 values; of more, by random ones.

    Of three values it is their range: each end has a chance of 1 in 27, more than the 2.5 % that may be cut off.
    """
    times, chances = _resamples(len(values))
    means = times @ np.asarray(values, float) / len(values)
    order = np.argsort(means)
    tail = (1 - level) / 2
    reached = np.searchsorted(np.cumsum(chances[order]), [tail - 1e-9, 1 - tail - 1e-9])
    low, high = means[order[reached]].tolist()
    return low, high


def image_interval(trials: Sequence[Sequence[np.ndarray]], level: float = LEVEL) -> tuple[float, float]:
    """The same for the mean over trials of the mean over their domains, where trials and their images are resampled."""
    rng, count = np.random.default_rng(0), len(trials)
    means = np.zeros((count, _IMAGE_DRAWS, count))  # of a trial, in every place where it is drawn
    for trial, domains in zip(means, trials, strict=True):
        for images in domains:
            shares = [(images > 0).mean(), (images < 0).mean(), (images == 0).mean()]
            drawn = rng.multinomial(len(images), shares, size=trial.shape)
            trial += (drawn[..., 0] - drawn[..., 1]) / len(images) / len(domains)
    chosen = rng.integers(count, size=(_IMAGE_DRAWS, count))
    places = np.arange(_IMAGE_DRAWS)[:, None], np.arange(count)
    tail = 50 * (1 - level)
    low, high = np.percentile(means[chosen, *places].mean(1), [tail, 100 - tail]).tolist()
    return low, high


@cache
def _resamples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each of so many values is drawn, a row for every resample; and the chance of each."""
    if count > _EXACT:
        drawn = np.random.default_rng(0).integers(count, size=(_DRAWS, count))
        return np.stack([np.bincount(row, minlength=count) for row in drawn]), np.full(_DRAWS, 1 / _DRAWS)
    rows = [np.bincount(drawn, minlength=count) for drawn in combinations_with_replacement(range(count), count)]
    ways = [math.factorial(count) / math.prod(map(math.factorial, row.tolist())) for row in rows]
    return np.stack(rows), np.array(ways) / count**count
