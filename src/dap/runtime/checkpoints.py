"""The state of a run in one file: tensors beside plain values, checked when read, without pickle."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.runtime.files import check_readable
from dap.runtime.reading import inflate, parse_object, read_tensors, reading, require
from dap.runtime.tensors import save_tensors

_VALUES, _CHECKSUMS, _KIND = "__values__", "__checksums__", "__kind__"


def save_state(path: str | Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], kind: str = "") -> None:
    """Write tensors and values (whatever JSON holds) to a safetensors file, whole or not at all."""
    packed = zlib.compress(json.dumps({**values, _KIND: kind}).encode(), 1)
    arrays: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        # Tied weights have one memory and two names, which the format refuses.
        arrays[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor
        seen.add(tensor.untyped_storage().data_ptr())
    arrays[_VALUES] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    arrays[_CHECKSUMS] = _checksums(arrays)
    save_tensors(path, arrays)


def load_state(path: str | Path, kind: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` wrote. A damaged file, or one of another kind, is an error."""
    check_readable(path)
    with reading(path, "a checkpoint", "remove it to start again"):
        arrays, _ = read_tensors(path)
        checksums = arrays.pop(_CHECKSUMS, None)
        if checksums is None or _VALUES not in arrays or not torch.equal(checksums, _checksums(arrays)):
            raise DapError(f"{path} is damaged (a checksum differs): remove it to start again")
        packed = arrays.pop(_VALUES)
        require(packed.dtype == torch.uint8 and packed.ndim == 1, f"{_VALUES} is not a vector of bytes")
        values = parse_object(inflate(packed.numpy().tobytes()))
    if (found := values.pop(_KIND, "")) != kind:
        raise DapError(f"{path} is a file of {found or 'another kind'}, not of {kind}: give another name")
    return arrays, values


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """What the one has and the other has not, as `name=value, …`; if nothing, `no name` for what only the other has.

    >>> difference({"steps": 5, "seed": 0}, {"steps": 4, "seed": 0}), difference({"seed": 0}, {"seed": 0, "raw": True})
    ('steps=5', 'no raw')
    """
    known = [f"{name}={value!r}" for name, value in theirs.items() if ours.get(name) != value]
    return ", ".join(known or [f"no {name}" for name in ours if name not in theirs])


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it.

    >>> list(under({"model.weight": torch.ones(1), "adam.weight": torch.ones(1)}, "model."))
    ['weight']
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def checksum(tensor: Tensor, code: int = 0) -> int:
    """Of a tensor's values, whatever its memory format; `code` is the checksum of the values before them."""
    flat = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(flat, code)  # pyright: ignore[reportArgumentType]  # an array is a buffer


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The checksum of each tensor, by name."""
    return {name: checksum(tensor) for name, tensor in tensors.items()}


def fingerprint(*modules: nn.Module) -> int:
    """One number that changes with any weight or buffer of the modules."""
    codes = [code for module in modules for code in checksums(module.state_dict()).values()]
    return checksum(torch.tensor(codes, device="cpu"))


def _checksums(arrays: Mapping[str, Tensor]) -> Tensor:
    labels = {name: f"{name} {arrays[name].dtype} {tuple(arrays[name].shape)}" for name in sorted(arrays)}
    return torch.tensor(
        [[zlib.crc32(label.encode()), checksum(arrays[name])] for name, label in labels.items()], device="cpu"
    )
