"""N:M patterns: whether weights follow one, and which layers a GPU can run 2:4.

Groups lie along the inputs: of a linear weight [out, in] they are neighbours in a row, of a convolution's [out, in, …]
neighbouring input channels at one place of the kernel. So PyTorch and TensorRT want them.
"""

import copy
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.sparse import (
    SparseSemiStructuredTensor,
    SparseSemiStructuredTensorCUSPARSELT,
    SparseSemiStructuredTensorCUTLASS,
)

from dap.errors import DapError
from dap.masks.allocation import n_of_m

_HALF = (torch.float16, torch.bfloat16)  # in float32 torch's kernels want 1:2, and lose weights of a 2:4 in silence
# In eval mode they hand the weights of their layers to operators of their own, which know plain tensors only.
_READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def check_pattern(weights: Mapping[str, Tensor], n: int, m: int) -> None:
    """An error that names the first weight with a group of `m` inputs of which more than `n` are kept, and where.

    `weights` are `Masks`, or tensors by name. A remainder of fewer than `m` inputs is a group, too. Transposed
    convolutions, which a pattern leaves whole, are not to be given.

    >>> check_pattern({"weight": torch.tensor([[1.0, 0.0, 0.0, 2.0, 3.0]])}, 2, 4)
    """
    n_of_m(n, m)  # refuses what is no pattern
    for name, weight in weights.items():
        if fault := _fault(weight, n, m):
            raise DapError(f"{name} breaks the pattern {n}:{m}: {fault}; prune with --allocation {n}:{m}")


def semi_structured_layers(model: nn.Module) -> dict[str, str | None]:
    """Every linear layer by the name of its weight, and why a GPU cannot run it 2:4; None if it can.

    It can if `torch.sparse.to_sparse_semi_structured` takes the weight, without loss: half precision, 2:4, and sizes
    that fit torch's kernels. These are cuSPARSELt's, or CUTLASS's if torch was told so.

    >>> model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 7)).half()
    >>> with torch.no_grad():
    ...     _ = model[0].weight.view(16, 8, 4)[..., :2].zero_()
    >>> semi_structured_layers(model)
    {'0.weight': None, '1.weight': 'its 7 outputs are no multiple of 16'}
    """
    readers = [module for module in model.modules() if isinstance(module, _READERS)]
    read = {layer: f"nn.{type(reader).__name__} reads it itself" for reader in readers for layer in reader.modules()}
    return {
        f"{path}.weight".lstrip("."): read.get(layer) or _obstacle(layer.weight)
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }


def summary(layers: Mapping[str, str | None]) -> str:
    """What `semi_structured_layers` found, in one line.

    >>> summary({"fc.weight": None, "head.weight": "its 7 outputs are no multiple of 16"})
    '1 of 2 linear layers can run 2:4 on a GPU; head.weight: its 7 outputs are no multiple of 16'
    """
    names: dict[str, list[str]] = {}
    for name, reason in layers.items():
        if reason is not None:
            names.setdefault(reason, []).append(name)
    fit = sum(reason is None for reason in layers.values())
    parts = [f"{fit} of {len(layers)} linear layers can run 2:4 on a GPU"]
    parts += [f"{', '.join(some[:3])}{' …' * (len(some) > 3)}: {reason}" for reason, some in names.items()]
    return "; ".join(parts)


def to_semi_structured(model: nn.Module) -> nn.Module:
    """A copy for inference whose linear layers run 2:4, those that can; the model itself is not changed.

    It must be on an NVIDIA GPU of compute capability 8.0 (Ampere) or newer. The project has none: its tests convert on
    the CPU, to the format of CUTLASS, and compute with a dense product in place of the kernel. Neither the kernels nor
    a gain in speed have been seen here. Write the file before: safetensors does not know such tensors.

        sparse = to_semi_structured(model.half().cuda())
    """
    layers = semi_structured_layers(model)
    fit = [name for name, reason in layers.items() if reason is None]
    if not fit:
        raise DapError(summary(layers))
    for name in fit:
        _check_gpu(model.get_parameter(name).device)
    sparse = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        for name in fit:
            weight = torch.sparse.to_sparse_semi_structured(sparse.get_parameter(name).detach().contiguous())
            sparse.get_submodule(name.rpartition(".")[0]).weight = nn.Parameter(weight, requires_grad=False)
    return sparse


def _fault(weight: Tensor, n: int, m: int) -> str | None:
    kept = torch.atleast_2d(weight != 0).movedim(1, -1)  # [out, in, …] → [out, …, in]
    inputs = kept.shape[-1]
    counts = nn.functional.pad(kept, (0, -inputs % m)).unflatten(-1, (-1, m)).sum(-1)
    over = (counts > n).nonzero()
    if not len(over):
        return None
    out, *place, group = over[0].tolist()
    where = f" at {tuple(place)} of the kernel" if place else ""
    first, last = group * m, min(group * m + m, inputs) - 1
    return f"output {out}{where} keeps {int(counts[tuple(over[0])])} of its inputs {first} to {last}"


def _obstacle(weight: Tensor) -> str | None:
    if weight.dtype not in _HALF:
        return f"{str(weight.dtype).removeprefix('torch.')} is neither float16 nor bfloat16"
    forced = SparseSemiStructuredTensor._FORCE_CUTLASS
    kernels = SparseSemiStructuredTensorCUTLASS if forced else SparseSemiStructuredTensorCUSPARSELT
    limits = kernels._DTYPE_SHAPE_CONSTRAINTS[weight.dtype]
    units = {"outputs": limits.sparse_min_rows, "inputs": limits.sparse_min_cols}
    for (what, unit), size in zip(units.items(), weight.shape, strict=True):
        if size % unit:
            return f"its {size} {what} are no multiple of {unit}"
    return "it is not 2:4" if _fault(weight, 2, 4) else None


def _check_gpu(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        raise DapError(f"2:4 needs an NVIDIA GPU of compute capability 8.0 (Ampere) or newer: the model is on {device}")
