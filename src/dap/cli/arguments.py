"""A function's parameters as flags, with types and help from its signature and docstring."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jsonargparse import (
    ActionConfigFile,  # pyright: ignore[reportPrivateImportUsage]  # it is documented
    ArgumentParser,
    DefaultHelpFormatter,
    get_loader,
    set_loader,
)
from yaml import YAMLError

from dap.studies.yaml_file import check_yaml


def call(function: Callable[..., int], name: str, arguments: Sequence[str]) -> int:
    """Call `function` with what the command line says; `--config file.yaml` gives values that flags override."""
    parser = make_parser(function, name)
    values = parser.instantiate(parser.parse_args(_switched(parser, arguments)))
    for key, value in values.items():
        if isinstance(value, str) and "\0" in value:
            parser.error(f"{key} is {value!r}, with a NUL character: remove it")
        if key in _PLACES and value == "":
            parser.error(f"{key} is empty: give a path")
    return function(**{key: value for key, value in values.items() if key != "config"})


_PLACES = ("out", "root", "dense", "run", "runs", "study", "suite", "files", "model", "weights")


def _load(text: str) -> Any:
    """What a value or a --config file says, if it is bounded."""
    check_yaml(text)
    return get_loader("yaml")(text)


set_loader("bounded", _load, (YAMLError,))


class _ConfigFile(ActionConfigFile):
    """Errors name the file."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        parser.reading = f"--config {values}: "
        try:
            super().__call__(parser, cfg, values, option_string)
        except UnicodeDecodeError as error:
            parser.error(f"it is no text ({error.reason})")
        parser.reading = ""


class _Formatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Examples keep their lines."""


class _Parser(ArgumentParser):
    reading = ""  # what errors are about

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """One line, without the whole usage and the types of Python."""
        line = " ".join(message.split())
        if found := re.match(r'Parser key "(.+?)":.*(?:Given|Got) value: (.*)', line):
            line = f"{found[1]} cannot be {found[2]}"
        for words in ("Parser key ", "Problems parsing config: ", ' in "<unicode string>"'):
            line = line.replace(words, "")
        print(f"{self.prog}: {self.reading}{line} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2) from ex


def make_parser(function: Callable[..., int], name: str) -> ArgumentParser:
    """A parser whose help begins with what the docstring says before its sections, which are for the flags."""
    introduction = inspect.cleandoc(function.__doc__ or "").split("\n\nArgs:")[0]
    parser = _Parser(prog=name, description=introduction, formatter_class=_Formatter, parser_mode="bounded")
    parser.add_argument("--config", action=_ConfigFile, help="a YAML file with values for these options")
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    for action in parser._actions:
        if not action.option_strings and getattr(action, "_typehint", None) == list[str]:  # as many words as there are
            action.nargs, action._typehint = "+", str  # pyright: ignore[reportAttributeAccessIssue]
    for action in parser._actions:  # --dry-run is how it is written; --dry_run will do
        for option in action.option_strings:
            parser._option_string_actions[option.replace("_", "-")] = action
        action.option_strings = [option.replace("_", "-") for option in action.option_strings]
    return parser


def _switched(parser: ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """`--json` alone stands for `--json true`."""
    options = parser._option_string_actions.items()
    switches = {option for option, action in options if getattr(action, "_typehint", None) is bool}
    # jsonargparse takes this one, of all, without a value only by its own name.
    arguments = ["--print_config" if argument == "--print-config" else argument for argument in arguments]
    following = [*arguments[1:], ""]
    return [
        f"{argument}=true" if argument in switches and after.lower() not in ("true", "false") else argument
        for argument, after in zip(arguments, following, strict=False)
    ]
