"""Safetensors files that are equal byte for byte where their content is."""

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from dap.runtime.files import replacing

_METADATA, _LENGTH = "__metadata__", 8  # the header begins with its length


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, whole or not at all. Each tensor is contiguous and has memory of its own.

    >>> import torch
    >>> save_tensors(tmp / "a.safetensors", {"w": torch.zeros(2)}, {"format": "mine", "by": "me"})
    """
    with replacing(path) as temporary:
        safetensors.torch.save_file(dict(tensors), temporary, dict(metadata or {}) or None)
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """The library writes tensors in a fixed order and metadata in a random one."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(_LENGTH), "little")
        header = json.loads(file.read(size))
        if _METADATA in header:
            header[_METADATA] = dict(sorted(header[_METADATA].items()))
            text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
            assert len(text) <= size  # tensors stay where they are
            file.seek(_LENGTH)
            file.write(text.ljust(size))
