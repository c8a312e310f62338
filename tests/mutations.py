"""Files that are changed with knowledge of their structure: headers, shapes, types, bits, and the JSON inside."""

import copy
import json
import math
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2.5,
    10**6,
    2**40,
    10**30,
    math.nan,
    math.inf,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
]
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "Q7")
BOMB = zlib.compress(bytes(2**26), 9)
NESTED = b'{"a":' + b"[" * 20000 + b"]" * 20000 + b"}"


def mutate_json(value: Any, rng: random.Random) -> Any:
    """One change somewhere in a value that JSON holds."""
    value = copy.deepcopy(value)
    node, path = value, []
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.7):
        path.append((node, rng.choice(list(node) if isinstance(node, dict) else range(len(node)))))
        node = node[path[-1][1]]
    if not path:
        return rng.choice(VALUES)
    holder, key = path[-1]
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[f"{key}x"] = holder[key]
        case 1:
            holder.append(holder[key])
        case 2 if isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] += rng.choice([-1, 1, 7, 2**33])
        case 3 if isinstance(holder, dict) and len(holder) > 1:
            other = rng.choice(list(holder))
            holder[key], holder[other] = holder[other], holder[key]
        case _:
            holder[key] = rng.choice(VALUES)
    return value


def mutate_text(text: bytes, rng: random.Random) -> bytes:
    """JSON with one change to what it says, or to how it says it."""
    match rng.randrange(8):
        case 0:
            return NESTED
        case 1:
            return rng.choice([b"[]", b"null", b"{}", b"", b"\xff\xfe", b"3", b'{"a":1,"a":2}'])
        case 2 if text[:1] == b"{" and b"," in text:
            first = text[1:].split(b",")[0]
            return b"{" + first + b"," + text[1:]  # a name twice, if it is a whole pair
        case _:
            return json.dumps(mutate_json(json.loads(text), rng)).encode()


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    match rng.randrange(4):
        case 0:
            return data[: rng.randrange(len(data) + 1)]
        case 1:
            return data + bytes(rng.randrange(1, 9))
        case _ if data:
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 3])):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(changed)
    return data


@dataclass
class Part:
    dtype: str
    shape: list[Any]
    data: bytes


@dataclass
class Tensors:
    """A safetensors file in its parts. `packed` names tensors that hold compressed JSON."""

    parts: dict[str, Part]
    metadata: dict[str, str] | None
    packed: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # of the metadata, those that are JSON
    shifts: dict[str, int] = field(default_factory=dict)  # of offsets

    @classmethod
    def parse(cls, data: bytes, packed: tuple[str, ...] = (), texts: tuple[str, ...] = ()) -> "Tensors":
        size = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        metadata = header.pop("__metadata__", None)
        parts = {
            name: Part(entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items()
        }
        return cls(parts, metadata, packed, texts)

    def build(self) -> bytes:
        header: dict[str, Any] = {} if self.metadata is None else {"__metadata__": self.metadata}
        body = b""
        for name, part in self.parts.items():
            start = len(body) + self.shifts.get(name, 0)
            header[name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [start, start + len(part.data)]}
            body += part.data
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body

    def mutate(self, rng: random.Random) -> None:
        """One change."""
        name = rng.choice(list(self.parts))
        part = self.parts[name]
        match rng.randrange(10):
            case 0:
                part.dtype = rng.choice(TYPES)
            case 1:
                part.shape = mutate_json(part.shape, rng)
            case 2:
                part.shape = rng.choice([[1, *part.shape], [*part.shape, 1], [math.prod(part.shape)], part.shape[::-1]])
            case 3:
                self.shifts[name] = rng.choice([-8, 1, 8, 2**40])
            case 4:
                self.parts[f"{name}x"] = self.parts.pop(name)
            case 5:
                del self.parts[name]
            case 6 if self.packed:
                self._repack(rng)
            case 7 if self.texts and self.metadata:
                key = rng.choice(self.texts)
                self.metadata[key] = mutate_text(self.metadata[key].encode(), rng).decode(errors="replace")
            case 8:  # a vector that fits its data
                part.data = mutate_bytes(part.data, rng)
                if part.dtype == "U8":
                    part.shape = [len(part.data)]
            case _ if part.data:
                self._flip(part, rng)

    def _flip(self, part: Part, rng: random.Random) -> None:
        changed = bytearray(part.data)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        part.data = bytes(changed)

    def _repack(self, rng: random.Random) -> None:
        part = self.parts[rng.choice(self.packed)]
        text = mutate_text(zlib.decompressobj().decompress(part.data, 2**20), rng)  # not a bomb
        part.data = rng.choice([zlib.compress(text)] * 8 + [BOMB, zlib.compress(text)[:-3], text])
        part.dtype, part.shape = "U8", [len(part.data)]


def peak_memory() -> int:
    """Bytes of this process at most since `reset_peak`."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def bits_of(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors by name as what can be compared: type, shape and bytes."""
    return {
        name: (str(tensor.dtype), tuple(tensor.shape), tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }
