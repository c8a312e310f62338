"""How many operations a forward pass takes."""

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dap.masks.attach import looking_at


def count_flops(model: nn.Module, inputs: Tensor) -> int:
    """Of all products, two for each multiplication.

    >>> count_flops(nn.Conv2d(3, 4, 1, bias=False), torch.zeros(1, 3, 2, 2))
    96
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # inside of a fused layer nothing is counted
    try:
        with looking_at(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            getattr(model, "_orig_mod", model)(inputs)  # torch.compile warns of the counter's hooks
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return counter.get_total_flops()
