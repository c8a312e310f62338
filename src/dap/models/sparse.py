"""Sparse files: the values that are not zero, and a bit for every weight that says which they are.

It is a safetensors file. A tensor `w` that is smaller so is stored as `w::values` and `w::bits`, any other as itself;
the metadata has shapes and checksums. What comes back is what went in, to the bit.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from dap.errors import DapError
from dap.runtime.checkpoints import checksum
from dap.runtime.reading import elements, has_padding, parse_object, reading, require, require_types
from dap.runtime.tensors import save_tensors

FORMAT = "dap-sparse-1"
_BITS, _VALUES = "::bits", "::values"
_CHUNK = 2**20  # weights that are unpacked at a time; a multiple of 8
_FLOATS = ("F64", "F32", "F16", "BF16")
_ABOUT = {"shapes": dict[str, list[int]], "checksums": dict[str, int], "forms": dict[str, str]}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def save_sparse(tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a state dict, whole or not at all; `metadata` is kept beside it.

    >>> save_sparse({"w": torch.tensor([0.0, 2.0, 0.0, 0.0])}, tmp / "sparse.safetensors")
    >>> load_sparse(tmp / "sparse.safetensors")["w"]
    tensor([0., 2., 0., 0.])
    """
    stored: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        kept = _kept(tensor)
        if kept.numel() / 8 + int(kept.sum()) * tensor.element_size() < tensor.nbytes:
            shapes[name] = list(tensor.shape)
            stored[name + _BITS] = torch.from_numpy(np.packbits(kept.numpy()))
            stored[name + _VALUES] = tensor.view(-1)[kept]
        else:
            stored[name] = tensor.clone()  # tied weights share their memory, which the format refuses
    checksums, forms = ({name: of(part) for name, part in stored.items()} for of in (checksum, _form))
    about = json.dumps({"shapes": shapes, "checksums": checksums, "forms": forms})
    said = {**(metadata or {}), "format": FORMAT, "about": about}
    save_tensors(path, stored, {**said, "checksum": _code(said)})


def load_sparse(path: str | Path) -> dict[str, Tensor]:
    """The state dict. The file is memory-mapped and unpacked in pieces, so hardly any memory is needed beside it."""
    path = Path(path)
    if not path.is_file():
        raise DapError(f"no sparse file at {path}")
    with reading(path, "a sparse file", "make it again"), safe_open(path, "pt") as file:
        return _unpack(file, _about(file.metadata() or {}, path), path)


def _about(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise DapError(f"{path} is not a sparse file of dap, or of another version ({metadata.get('format')})")
    if metadata.get("checksum") != _code({name: text for name, text in metadata.items() if name != "checksum"}):
        raise _damaged(path)
    about = {"forms": {}, **parse_object(metadata["about"])}  # earlier versions wrote no forms
    require_types(about, _ABOUT, only=True)
    return about


def _unpack(file: Any, about: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    shapes, checksums = about["shapes"], about["checksums"]
    parts = {whole + ending for whole in shapes for ending in (_BITS, _VALUES)}
    require(parts <= set(checksums), "a tensor has a shape and no bits or values")
    require(not set(shapes) & (set(checksums) - parts), "a tensor is there twice")
    if set(file.keys()) != set(checksums):
        raise _damaged(path)
    for name, form in about["forms"].items():
        if _form(file.get_tensor(name)) != form:  # memory-mapped: nothing is read
            raise _damaged(path)
    tensors: dict[str, Tensor] = {}
    for name in checksums:
        if name in parts:
            if name.endswith(_BITS):
                whole = name.removesuffix(_BITS)
                tensors[whole] = _unpack_one(file, whole, shapes[whole], checksums, path)
        else:
            tensors[name] = file.get_tensor(name)
            if checksum(tensors[name]) != checksums[name]:
                raise _damaged(path)
    return tensors


def _unpack_one(file: Any, name: str, shape: list[int], checksums: Mapping[str, int], path: Path) -> Tensor:
    bits, values = file.get_slice(name + _BITS), file.get_slice(name + _VALUES)
    size, taken = _checked_size(name, shape, bits, values), 0
    codes = {_BITS: 0, _VALUES: 0}
    out = torch.zeros(size, dtype=values[0:0].dtype, device="cpu")
    for start in range(0, size, _CHUNK):
        stop = min(start + _CHUNK, size)
        packed = bits[start // 8 : -(-stop // 8)]
        kept = torch.from_numpy(np.unpackbits(packed.numpy(), count=stop - start)).bool()
        require(stop < size or not has_padding(size, int(packed[-1])), f"{name} has bits beyond its last weight")
        part = values[taken : taken + int(kept.sum())]
        out[start:stop][kept] = part
        taken += len(part)
        codes = {_BITS: checksum(packed, codes[_BITS]), _VALUES: checksum(part, codes[_VALUES])}
    if any(checksums[name + ending] != code for ending, code in codes.items()) or values.get_shape() != [taken]:
        raise _damaged(path)
    return out.view(shape)


def _checked_size(name: str, shape: list[int], bits: Any, values: Any) -> int:
    """The number of weights, before memory is taken for them: as many as there are bits."""
    counts = bits.get_shape()
    require(len(counts) == 1 and bits.get_dtype() == "U8", f"the bits of {name} are not a vector of bytes")
    size = elements(shape, 8 * counts[0])
    require(counts[0] == -(-size // 8), f"{name} has {size} weights, and {counts[0]} bytes of bits")
    kept = values.get_shape()
    numbers = values.get_dtype() in _FLOATS
    require(len(kept) == 1 and kept[0] <= size and numbers, f"the values of {name} are not a vector of numbers")
    return size


def _kept(tensor: Tensor) -> Tensor:
    """What has a bit that is set: −0 is no 0."""
    if not tensor.is_floating_point() or tensor.element_size() not in _WORDS:
        return torch.ones(tensor.numel(), dtype=torch.bool, device="cpu")
    return tensor.view(-1).view(_WORDS[tensor.element_size()]) != 0


def _code(metadata: Mapping[str, str]) -> str:
    return f"{zlib.crc32(json.dumps(metadata, sort_keys=True).encode()):08x}"


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _damaged(path: Path) -> DapError:
    return DapError(f"{path} is damaged (a checksum differs): make it again")
