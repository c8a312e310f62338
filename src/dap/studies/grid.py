"""A mapping with lists in it as the list of mappings it stands for."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import islice, product
from math import prod
from typing import Any

from dap.errors import DapError

_MOST = 100_000  # combinations


def expand(values: Mapping[str, Any], cls: type, more: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Every combination of the alternatives in `values`, options of the dataclass `cls`; the last varies first.

    A list gives alternatives; where an option is a list itself, lists in a list do. `more` has types of other options.

    >>> from dap.config import PruneConfig
    >>> [row["alpha"] for row in expand({"steps": 5, "alpha": [0, 1]}, PruneConfig)]
    [0, 1]
    """
    hints = {**typing.get_type_hints(cls), **(more or {})}
    yield from _combinations({name: (value, hints.get(name, Any)) for name, value in values.items()})


def _combinations(values: Mapping[str, tuple[Any, Any]]) -> Iterator[dict[str, Any]]:
    """Of values with their types."""
    rows = [list(islice(_alternatives(value, hint), _MOST + 1)) for value, hint in values.values()]
    if (count := prod(map(len, rows))) > _MOST:
        lists = ", ".join(name for name, row in zip(values, rows, strict=True) if len(row) > 1)
        raise DapError(f"the alternatives of {lists} stand for {count:,} runs or more: give at most {_MOST:,}")
    for chosen in product(*rows):
        yield dict(zip(values, chosen, strict=True))


def _alternatives(value: Any, hint: Any) -> Iterator[Any]:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    nested = next((kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)
    if isinstance(value, Mapping):
        if nested is not None:
            yield from expand(value, nested)
        else:
            yield from _combinations({name: (part, Any) for name, part in value.items()})
    elif isinstance(value, list):
        is_list = any(typing.get_origin(kind) is tuple for kind in kinds)
        if is_list and not any(isinstance(part, list) for part in value):
            yield value
        else:
            for part in value:
                yield from [part] if isinstance(part, list) else _alternatives(part, hint)
    else:
        yield value
