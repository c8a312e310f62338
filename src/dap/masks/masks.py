"""Masks: which weights are kept. Bit-packed in memory and on disk, exact, independent of the model's class."""

import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.runtime.files import write_atomic
from dap.runtime.reading import elements, has_padding, inflate, parse_object, reading, require

_FORMAT = "dap-masks-1"
_LONGEST_ENTRY = 4096  # bytes of JSON for a weight's name and shape


class Masks(Mapping[str, Tensor]):
    """One boolean mask per weight, by the weight's name in the model; true means kept.

    >>> masks = Masks({"fc.weight": torch.tensor([[True, False], [False, False]])})
    >>> masks.sparsity, masks.by_layer()
    (0.75, {'fc.weight': 0.75})
    """

    def __init__(self, masks: Mapping[str, Tensor]):
        if any(mask.numel() == 0 for mask in masks.values()):
            raise DapError("a mask is empty: leave weights without elements out")
        self._shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
        self._bits = {
            name: np.packbits(mask.detach().cpu().contiguous().view(-1).bool().numpy()) for name, mask in masks.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        flat = np.unpackbits(self._bits[name], count=math.prod(shape))
        return torch.from_numpy(flat).bool().view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        return self._shapes == other._shapes and all(np.array_equal(self._bits[n], other._bits[n]) for n in self)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # equal by content, like a list

    def __repr__(self) -> str:
        return f"Masks({len(self)} weights, {self.kept:,} of {self.total:,} kept, sparsity {self.sparsity:.4f})"

    @property
    def total(self) -> int:
        """N, the number of masked weights."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    @property
    def kept(self) -> int:
        return sum(_ones(bits) for bits in self._bits.values())

    @property
    def sparsity(self) -> float:
        """The share of masked weights that are zero."""
        return 1 - self.kept / max(1, self.total)

    def by_layer(self) -> dict[str, float]:
        """The sparsity of each weight."""
        return {name: 1 - _ones(self._bits[name]) / math.prod(shape) for name, shape in self._shapes.items()}

    def overlap(self, other: "Masks") -> float:
        """Kept by both over kept by either (the Jaccard index): 1 for equal masks."""
        if self._shapes != other._shapes:
            raise DapError("the two masks belong to different models: their names or shapes differ")
        both = sum(_ones(self._bits[name] & other._bits[name]) for name in self)
        return both / max(1, self.kept + other.kept - both)

    def check(self, model: nn.Module) -> None:
        """An error that names the first weight that the model lacks or has in another shape."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, shape in self._shapes.items():
            if name not in parameters:
                raise DapError(f"the masks do not fit the model: it has no weight {name!r}")
            found = tuple(parameters[name].shape)
            if found != shape:
                raise DapError(f"the masks do not fit the model: {name} has shape {found}, its mask {shape}")

    def save(self, path: str | Path) -> None:
        write_atomic(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> "Masks":
        """Needs neither the model nor its class. A damaged file is an error, never a wrong mask."""
        path = Path(path)
        if not path.is_file():
            raise DapError(f"no mask file at {path}")
        return cls.from_bytes(path.read_bytes(), str(path))

    def to_bytes(self) -> bytes:
        """A safetensors file with two byte arrays: `bits`, and `layout`, the names and shapes as compressed JSON."""
        layout = zlib.compress(json.dumps(self._shapes, separators=(",", ":")).encode(), 9)
        arrays = {
            "bits": np.concatenate([*self._bits.values(), np.empty(0, np.uint8)]),
            "layout": np.frombuffer(layout, np.uint8),
        }
        arrays["sha256"] = _digest(arrays)
        return safetensors.numpy.save(arrays, {"format": _FORMAT})

    @classmethod
    def from_bytes(cls, data: bytes, origin: str = "the data") -> "Masks":
        with reading(origin, "a mask file", "make it again"):
            arrays = safetensors.numpy.load(data)
            digest = arrays.pop("sha256", None)
            if set(arrays) != {"bits", "layout"} or digest is None or not np.array_equal(digest, _digest(arrays)):
                raise DapError(f"{origin} is damaged (its checksum differs) or not a mask file: make it again")
            for name, array in {**arrays, "sha256": digest}.items():
                require(array.dtype == np.uint8 and array.ndim == 1, f"{name} is not a vector of bytes")
            bits, packed = arrays["bits"], arrays["layout"].tobytes()
            # A weight has a byte of bits at least.
            return cls._unpack(parse_object(inflate(packed, 2 + _LONGEST_ENTRY * len(bits))), bits)

    @classmethod
    def _unpack(cls, shapes: dict[str, Any], bits: np.ndarray) -> "Masks":
        masks = cls({})
        start = 0
        for name, shape in shapes.items():
            size = elements(shape, 8 * (len(bits) - start))
            stop = start + -(-size // 8)
            require(not has_padding(size, int(bits[stop - 1])), f"{name} has bits beyond its last weight")
            masks._shapes[name] = tuple(shape)
            masks._bits[name] = bits[start:stop].copy()
            start = stop
        require(start == len(bits), f"there are {len(bits)} bytes of bits for shapes that take {start}")
        return masks


def _ones(bits: np.ndarray) -> int:
    return int(np.bitwise_count(bits).sum())


def _digest(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    digest = hashlib.sha256(_FORMAT.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return np.frombuffer(digest.digest(), np.uint8)
