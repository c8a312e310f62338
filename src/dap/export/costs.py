"""What a model costs where it runs: parameters, FLOPs, latency."""

from pathlib import Path
from typing import NamedTuple

from torch import nn

from dap.export.latency import compare
from dap.structure.flops import count_flops


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
            count_flops(model, next(model.parameters()).new_zeros(1, *shape)),
            in_torch[name],
            in_onnx.get(name),
        )
        for name, model in models.items()
    }
