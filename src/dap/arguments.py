"""A function's parameters as flags, with types and help from its signature and docstring."""

import inspect
from collections.abc import Callable, Sequence

from jsonargparse import ArgumentParser


def call(function: Callable[..., int], name: str, arguments: Sequence[str]) -> int:
    """Call `function` with what the command line says; `--config file.yaml` gives values that flags override."""
    # The docstring's sections are for the flags; what stands before them introduces the verb.
    introduction = (function.__doc__ or "").split("\n\n    Args:")[0]
    parser = ArgumentParser(prog=name, description=introduction)
    parser.add_argument("--config", action="config", help="a YAML file with values for these options")
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    values = parser.instantiate(parser.parse_args(_switched(function, arguments)))
    return function(**{key: value for key, value in values.items() if key != "config"})


def _switched(function: Callable[..., int], arguments: Sequence[str]) -> list[str]:
    """`--json` stands for `--json true`."""
    switches = {f"--{key}" for key, value in inspect.signature(function).parameters.items() if value.annotation is bool}
    return [f"{argument}=true" if argument in switches else argument for argument in arguments]
