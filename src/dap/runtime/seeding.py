"""Randomness as a function of names and numbers, so that nothing about it has to be saved."""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed that depends on every part, alike on every machine.

    >>> derive_seed("noise", 0, 1) != derive_seed("noise", 0, 2)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def uniform_noise(seed: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that fills one flat float tensor after another with numbers from [0, 1]."""
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
        return lambda out: out.uniform_(generator=generator)
    # On a CPU torch draws in one thread from a large generator: taking two numbers from each draw of a small one is
    # twice as fast, and sampling is the dearest part of a gate.
    bits = np.random.SFC64(seed)

    def fill(out: Tensor) -> Tensor:
        drawn = torch.from_numpy(bits.random_raw((len(out) + 1) // 2).view(np.int32))
        return out.copy_(drawn[: len(out)]).mul_(2.0**-32).add_(0.5)

    return fill
