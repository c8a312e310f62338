"""YAML as people mean it: 1e-3 is a number, 2:4 is not one, and a key that is there twice is a mistake."""

import re
from pathlib import Path
from typing import Any

import yaml

from dap.errors import DapError


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


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    if "\0" in node.value:
        raise yaml.constructor.ConstructorError(None, None, f"{node.value!r} has a NUL character", node.start_mark)
    return loader.construct_yaml_str(node)


_Loader.add_constructor("tag:yaml.org,2002:str", _text)


def read_yaml(file: Path) -> Any:
    """What a file says.

    >>> _ = (tmp / "a.yaml").write_text("rate: 1e-3\\npattern: 2:4")
    >>> read_yaml(tmp / "a.yaml")
    {'rate': 0.001, 'pattern': '2:4'}
    """
    if not file.is_file():
        raise DapError(f"no file at {file}")
    try:
        return yaml.load(file.read_text(), _Loader)  # a safe loader
    except yaml.YAMLError as error:
        line = f", line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DapError(f"{file}{line} is not sound YAML: {reason}") from None
    except RecursionError:
        raise DapError(f"{file} is nested too deep: give the YAML file of a study") from None
    except UnicodeDecodeError:
        raise DapError(f"{file} is no text: give a YAML file") from None
