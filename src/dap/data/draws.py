"""Random numbers that belong to an image: a function of its seed and of their place, whoever computes them.

A batch divided over several processes is then augmented as it would be in one.
"""

import numpy as np

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): the constants of SplitMix64.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seeds: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1): seeds [n], uint64, to float64 [n, count].

    >>> uniforms(np.array([1, 2], np.uint64), 3).shape
    (2, 3)
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
    # Mixed once before the steps too: seeds that are a step apart would share their numbers.
    bits = _mix(_mix(seeds.astype(np.uint64))[:, None] + steps)
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))
