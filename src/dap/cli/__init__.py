"""The command line: the table of verbs, and one function per verb."""

from dap.cli.main import VERBS, main

__all__ = ["VERBS", "main"]
