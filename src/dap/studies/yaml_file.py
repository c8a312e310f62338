"""YAML as people mean it: 1e-3 is a number, 2:4 is not one, and a key that is there twice is a mistake."""

import re
from pathlib import Path
from typing import Any

import yaml

from dap.errors import DapError

_MOST, _DEEPEST = 100_000, 50  # values in a file, aliases written out, and levels of them


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":int", ":float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9]\d*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.inf$|\.nan$"),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]  # `<<: *other` may be overridden
    keys = [loader.construct_object(key, deep=True) for key in own]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def check_yaml(text: str) -> None:
    """Raise YAMLError for text that stands for too much, before anything is built from it. Nothing here is recursive.

    >>> check_yaml("a: &a [1, 2]\\nb: [*a, *a]")
    """
    known: dict[str, tuple[int, int]] = {}  # by anchor: how many values, and how many levels of them
    inside: list[tuple[str | None, int, int]] = [(None, 0, 0)]  # the same of what has begun
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, 1, 1))
            values = levels = 0
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, *_ in inside):
                raise _refused(event, f"*{event.anchor} is inside of what it stands for")
            values, levels = known.get(event.anchor, (1, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, levels = inside.pop()
            known |= {anchor: (values, levels)} if anchor else {}
        elif isinstance(event, yaml.ScalarEvent):
            if found := re.search("[\0\ud800-\udfff]", event.value):
                raise _refused(event, f"{event.value!r} has {found[0]!r}, which no name can have: remove it")
            values = levels = 1
            known |= {event.anchor: (1, 1)} if event.anchor else {}
        else:  # where a document begins and ends
            continue
        anchor, so_far, deep = inside[-1]
        inside[-1] = anchor, so_far + values, max(deep, 1 + levels)
        if inside[-1][1] > _MOST:
            raise _refused(event, f"it stands for more than {_MOST:,} values: write less of it")
        if len(inside) + levels > _DEEPEST:
            raise _refused(event, f"it is nested deeper than {_DEEPEST} levels: give plain options")


def _refused(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def read_yaml(file: Path) -> Any:
    """What a file says.

    >>> _ = (tmp / "a.yaml").write_text("rate: 1e-3\\npattern: 2:4")
    >>> read_yaml(tmp / "a.yaml")
    {'rate': 0.001, 'pattern': '2:4'}
    """
    if not file.is_file():
        raise DapError(f"no file at {file}")
    try:
        text = file.read_text()
        check_yaml(text)
        return yaml.load(text, _Loader)  # a safe loader
    except yaml.YAMLError as error:
        line = f", line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DapError(f"{file}{line} is not sound YAML: {reason}") from None
    except UnicodeDecodeError:
        raise DapError(f"{file} is no text: give a YAML file") from None
