"""A mapping with lists in it as the list of mappings it stands for."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import product
from typing import Any


def expand(values: Mapping[str, Any], cls: type, more: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Every combination of the alternatives in `values`, options of the dataclass `cls`; the last varies first.

    A list gives alternatives; where an option is a list itself, lists in a list do. `more` has types of other options.

    >>> from dap.config import PruneConfig
    >>> [row["alpha"] for row in expand({"steps": 5, "alpha": [0, 1]}, PruneConfig)]
    [0, 1]
    """
    hints = {**typing.get_type_hints(cls), **(more or {})}
    rows = [list(_alternatives(value, hints.get(name, Any))) for name, value in values.items()]
    for chosen in product(*rows):
        yield dict(zip(values, chosen, strict=True))


def _alternatives(value: Any, hint: Any) -> Iterator[Any]:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    nested = next((kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)
    if isinstance(value, Mapping):
        if nested is not None:
            yield from expand(value, nested)
        else:
            for chosen in product(*(_alternatives(part, Any) for part in value.values())):
                yield dict(zip(value, chosen, strict=True))
    elif isinstance(value, list):
        is_list = any(typing.get_origin(kind) is tuple for kind in kinds)
        if is_list and not any(isinstance(part, list) for part in value):
            yield value
        else:
            for part in value:
                yield from [part] if isinstance(part, list) else _alternatives(part, hint)
    else:
        yield value
