"""What a model costs where it runs: parameters, FLOPs, latency."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dap.export.latency import compare
from dap.masking import frozen


class Costs(NamedTuple):
    """Of one model, on one image."""

    parameters: int
    flops: int  # two for each multiplication
    torch_seconds: float  # the median latency in PyTorch
    onnx_seconds: float | None = None  # and in ONNX Runtime


def compare_costs(
    models: dict[str, nn.Module], files: dict[str, Path], shape: tuple[int, ...], threads: int | None = None
) -> dict[str, Costs]:
    """Of modules, and of the ONNX files of the same names if there are any, measured in turn."""
    in_torch = compare(models, shape, threads=threads)
    in_onnx = compare(files, shape, threads=threads) if files else {}
    return {
        name: Costs(
            sum(parameter.numel() for parameter in model.parameters()),
            flops(model, shape),
            in_torch[name],
            in_onnx.get(name),
        )
        for name, model in models.items()
    }


@torch.no_grad()
def flops(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Of the products of one image of `shape`: two for each multiplication.

    >>> flops(nn.Conv2d(3, 4, 1, bias=False), (3, 2, 2))
    96
    """
    first = next(model.parameters())
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # inside of a fused layer nothing is counted
    try:
        with frozen(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, *shape, dtype=first.dtype, device=first.device))
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return counter.get_total_flops()
