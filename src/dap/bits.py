"""Which images are right, as text: small enough for a result that is kept, and enough to compare two models by."""

import base64

import numpy as np
from torch import Tensor


def pack_bits(flags: Tensor) -> str:
    """
    >>> import torch
    >>> pack_bits(torch.tensor([True, False, True]))
    '3:oA=='
    """
    packed = np.packbits(flags.detach().cpu().bool().numpy())
    return f"{len(flags)}:{base64.b64encode(packed.tobytes()).decode()}"


def unpack_bits(text: str) -> np.ndarray:
    """
    >>> unpack_bits("3:oA==").tolist()
    [True, False, True]
    """
    count, _, packed = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=int(count)).astype(bool)
