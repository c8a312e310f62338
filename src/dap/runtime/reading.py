"""Reading files that others may have damaged or made: checks before memory is taken, and one kind of error.

`reading` turns whatever a parser raises into a `DapError` that names the file. The checks raise `Malformed`, which says
what is wrong with the content.
"""

import json
import math
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from safetensors import safe_open
from torch import Tensor

from dap.errors import DapError

MOST_DIMS = 64  # numpy's limit
# JSON of this project compresses to 1/54 at most (100,000 equal rows of a history). Below the floor any ratio is
# accepted: a loss that stays 0.0 for 800,000 steps.
_RATIO = 100
_FLOOR = 2**22


class Malformed(DapError):
    """Content that no file of ours has. Inside `reading` the name of the file is added."""


@contextmanager
def reading(origin: str | Path, kind: str, remedy: str) -> Iterator[None]:
    """Every error inside is a `DapError` that names the file; errors of the system stay what they are.

    >>> with reading("masks.safetensors", "a mask file", "make it again"):
    ...     require(False, "its bits are too short")
    Traceback (most recent call last):
    dap.errors.DapError: masks.safetensors is damaged or not a mask file (its bits are too short): make it again
    """
    try:
        yield
    except Exception as error:  # parsers have errors of many types
        if isinstance(error, DapError | OSError | MemoryError) and not isinstance(error, Malformed):
            raise
        reason = " ".join(str(error).split())[:200]
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__}: {reason}"
        raise DapError(f"{origin} is damaged or not {kind} ({reason}): {remedy}") from None


def require(sound: bool, otherwise: str) -> None:
    if not sound:
        raise Malformed(otherwise)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, memory-mapped. Use it inside `reading`."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def inflate(packed: bytes, most: int | None = None) -> bytes:
    """Decompress what zlib compressed, but not more than `most` bytes, or than JSON could honestly become.

    >>> inflate(zlib.compress(bytes(2**24)))
    Traceback (most recent call last):
    dap.runtime.reading.Malformed: compressed text is longer than 4,194,304 bytes
    """
    honest = max(_FLOOR, _RATIO * len(packed))
    most = honest if most is None else min(most, honest)
    machine = zlib.decompressobj()
    text = machine.decompress(packed, most + 1)
    require(len(text) <= most, f"compressed text is longer than {most:,} bytes")
    require(machine.eof and not machine.unused_data, "compressed text has no end, or something after it")
    return text


def parse_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object in which no name comes twice.

    >>> parse_object('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    dap.runtime.reading.Malformed: JSON has the name 'a' twice
    """
    found = json.loads(text, object_pairs_hook=_without_duplicates)
    require(isinstance(found, dict), "JSON is not an object")
    return found


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        require(name not in found, f"JSON has the name {name!r} twice")
        found[name] = value
    return found


def conforms(value: Any, kind: Any) -> bool:
    """Whether a value from JSON has this type. Integers fit 64 bits; text can be encoded; a tuple is a list in JSON.

    >>> conforms({"a": [1, 2.5]}, dict[str, list[float]]), conforms(True, int), conforms([1, "x"], tuple[int, str])
    (True, False, True)
    """
    parts, origin = get_args(kind), get_origin(kind) or kind
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(conforms(value, part) for part in parts)
    if kind is float and type(value) is float:
        return True
    if kind in (int, float):
        return type(value) is int and -(2**63) <= value < 2**63
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            conforms(k, parts[0]) and conforms(v, parts[1]) for k, v in value.items()
        )
    if origin is tuple and parts[-1] is not Ellipsis:
        return isinstance(value, list) and len(value) == len(parts) and all(map(conforms, value, parts))
    if isinstance(origin, type) and issubclass(origin, Iterable) and parts:
        return isinstance(value, list) and all(conforms(one, parts[0]) for one in value)
    return type(value) is (type(None) if kind is None else kind)


def require_types(values: Mapping[str, Any], kinds: Mapping[str, Any], *, only: bool = False) -> None:
    """Every name of `kinds` is there and has its type; with `only`, there is nothing else."""
    for name, kind in kinds.items():
        require(name in values, f"{name} is missing")
        require(conforms(values[name], kind), f"{name} is not {getattr(kind, '__name__', kind)}")
    if only and (unknown := [name for name in values if name not in kinds]):
        raise Malformed(f"unknown: {', '.join(map(repr, unknown[:3]))}")


def require_like(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, dtypes: bool = True) -> None:
    """The same names, shapes and, with `dtypes`, types of numbers."""
    for name, tensor in expected.items():
        require(name in found, f"{name} is missing")
        other = found[name]
        require(other.shape == tensor.shape, f"{name} has shape {tuple(other.shape)}, not {tuple(tensor.shape)}")
        require(not dtypes or other.dtype == tensor.dtype, f"{name} is {other.dtype}, not {tensor.dtype}")
    if unknown := [name for name in found if name not in expected]:
        raise Malformed(f"unknown: {', '.join(map(repr, unknown[:3]))}")


def elements(shape: Any, most: int) -> int:
    """How many numbers a tensor of this shape has, 1 to `most`. `shape` comes from JSON."""
    require(isinstance(shape, list) and len(shape) <= MOST_DIMS, "a shape is not a list of dimensions")
    require(all(type(side) is int and 1 <= side <= most for side in shape), f"a dimension is not from 1 to {most}")
    require((size := math.prod(shape)) <= most, f"a shape has {size} elements, and there are bits for {most}")
    return size


def has_padding(bits: int, last: int) -> bool:
    """Whether `last`, the last byte of so many bits, has a bit beyond them."""
    return bool(bits % 8 and last & (0xFF >> bits % 8))
