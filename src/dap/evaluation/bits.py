"""Which images are right, as text: small enough for a result that is kept, and enough to compare two models by."""

import base64

import numpy as np
from torch import Tensor

from dap.runtime.reading import reading, require


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
    with reading("which images are right", "bits as text", "evaluate again"):
        count, _, packed = text.partition(":")
        found = np.frombuffer(base64.b64decode(packed, validate=True), np.uint8)
        require(-(-int(count) // 8) == len(found), f"{len(found)} bytes are not {count[:20]} bits")
        return np.unpackbits(found, count=int(count)).astype(bool)
