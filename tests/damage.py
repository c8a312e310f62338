"""Damage to JSON files that knows their structure: a function of a seed."""

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

ODD: list[Any] = [
    None, [], {}, "", "x", "../../x", True, False, 0, 1, -1, 0.5, 1e308, 10**30, 10**400, math.nan, math.inf,
    [[]], [None], {"x": 1},
]  # fmt: skip


def mutants(text: str, count: int, seed: int) -> Iterator[bytes]:
    """So many changed versions of a JSON document."""
    rng = random.Random(seed)
    for _ in range(count):
        if rng.random() < 0.25:
            yield rng.choice(_BYTES)(text.encode(), rng)
        else:
            changed = json.loads(text)  # faster than a copy
            for _ in range(rng.choice((1, 1, 1, 2))):
                changed = _change(changed, rng)
            yield json.dumps(changed).encode()


def log_mutants(text: str, count: int, seed: int) -> Iterator[bytes]:
    """So many changed versions of a log with a JSON object a line: one line is another."""
    rng, lines = random.Random(seed), text.splitlines()
    for _ in range(count):
        at = rng.randrange(len(lines))
        (changed,) = mutants(lines[at], 1, rng.getrandbits(32))
        changed = changed.replace(b"\n", b"")
        yield b"\n".join(
            [*(line.encode() for line in lines[:at]), changed, *(x.encode() for x in lines[at + 1 :]), b""]
        )


def _change(values: Any, rng: random.Random) -> Any:
    """One place in a document is another."""
    places = list(_places(values))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(ODD))
    holder, key = rng.choice(places)
    rng.choice((_replace, _replace, _nudge, _nudge, _remove, _rename, _repeat, _swap, _nest))(holder, key, rng)
    return values


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(values, dict | list):
        for key in values if isinstance(values, dict) else range(len(values)):
            yield values, key
            yield from _places(values[key])


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(ODD))


def _nudge(holder: Any, key: Any, rng: random.Random) -> None:
    """A value that is nearly the same, and of the same type."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        near = [value + 1, -value, value * 2]
        holder[key] = rng.choice(near if isinstance(value, int) else [*near, math.nextafter(value, math.inf)])
    elif isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        holder[key] = value[:at] + rng.choice("0a./ ") + value[at + 1 :]


def _remove(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        other = str(rng.choice(list(holder)))
        holder[rng.choice((f"{key}x", "x", "", other))] = holder.pop(key)


def _repeat(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[f"{key} again"] = copy.deepcopy(holder[key])


def _swap(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _nest(holder: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 30, 300))):
        holder[key] = [holder[key]]


def _flip(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text))
    return text[:at] + bytes([text[at] ^ (1 << rng.randrange(8))]) + text[at + 1 :]


def _cut(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))]


def _insert(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text))
    return (
        text[:at] + rng.choice((b"\xff", b"\xc3(", b"[" * 5000, b'{"x":' * 5000, b"NaN", b"9" * 5000, b"}")) + text[at:]
    )


def _whole(text: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        (b"", b"[]", b"null", b"{}", b"3", b'"x"', b"[" * 100_000, b"\xff\xfe", b"\xef\xbb\xbf" + text, b"\0" * 64)
    )


_BYTES: list[Callable[[bytes, random.Random], bytes]] = [_flip, _flip, _flip, _cut, _insert, _whole]
