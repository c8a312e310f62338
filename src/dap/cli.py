"""The command line: one function per verb, which imports what it needs when it is called, so that help is instant."""

import sys
from collections.abc import Sequence
from typing import Any

from dap.errors import DapError


def data_check(suite: str, root: str | None = None, quick: bool = False, json: bool = False) -> int:
    """Compare a suite on disk with what should be there, and decode every image.

    Args:
        suite: a benchmark's name, a folder <domain>/<class>/<image>, a .csv or .parquet, or hf:<name>
        root: the folder that holds the benchmark's own (default: data)
        quick: count images, but decode none
        json: print one JSON object instead of a table

    Returns:
        0 if the suite is whole, 1 if not
    """
    from dataclasses import asdict
    from json import dumps

    from dap.data.checking import check_suite

    check = check_suite(suite, root, quick)
    if json:
        print(dumps({**asdict(check), "whole": check.whole}))
        return int(not check.whole)
    for domain, found in check.domains.items():
        expected = "" if found.expected is None else f" of {found.expected}"
        unreadable = "not decoded" if quick else f"{len(found.unreadable)} unreadable"
        print(f"{domain:20} {found.images:>7}{expected} images, {unreadable}")
    for line in [*check.notes, *check.problems]:
        print(f"- {line}")
    print(f"{check.suite} is whole" if check.whole else f"{check.suite} is not whole")
    return int(not check.whole)


# A verb is a function, or a dictionary of verbs.
VERBS: dict[str, Any] = {
    "data": {"_help": "Look at the images on disk.", "check": data_check},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 for success, 1 for what a user can mend, 2 for wrong usage."""
    from jsonargparse import ActionYesNo, ArgumentParser, auto_cli

    class Parser(ArgumentParser):
        def add_argument(self, *names: Any, **options: Any) -> Any:
            # `--json` rather than `--json true`.
            if options.get("type") is bool:
                options = {key: value for key, value in options.items() if key != "type"} | {"action": ActionYesNo}
            return super().add_argument(*names, **options)

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = auto_cli(VERBS, args=given, parser_class=Parser, prog="dap")
        return code if isinstance(code, int) else 0
    except DapError as error:
        print(f"dap: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dap: interrupted", file=sys.stderr)
        return 130
