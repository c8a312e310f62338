"""dap completion: the shell finishes what you begin to type."""

from typing import Literal, get_args, get_origin

# What is a place on disk, of the options and arguments of any verb.
_FILES = ("config", "study", "weights", "suite", "run", "dense", "runs")
_FOLDERS = ("out", "root")


def completion_script(shell: Literal["bash", "zsh", "tcsh"]) -> int:
    """Print a script that completes verbs, options and files in your shell.

    Example: dap completion bash > ~/.local/share/bash-completion/completions/dap

    Example: dap completion zsh > "${fpath[1]}/_dap"

    Args:
        shell: the shell

    Returns:
        0
    """
    from argparse import HelpFormatter

    import shtab
    from jsonargparse import ArgumentParser

    from dap.cli.arguments import make_parser
    from dap.cli.main import VERBS

    def branch(words: str) -> ArgumentParser:
        return ArgumentParser(prog=words, description=f"{words} …", formatter_class=HelpFormatter)

    tree = branch("dap")
    branches = {"": tree.add_subcommands(required=False)}
    for verb, function in VERBS.items():
        group, _, word = verb.rpartition(" ")
        if group not in branches:
            parser = branch(f"dap {group}")
            branches[""].add_subcommand(group, parser)
            branches[group] = parser.add_subcommands(required=False)
        parser = make_parser(function, f"dap {verb}")
        parser.formatter_class = HelpFormatter  # shtab asks it for words that jsonargparse's does not have
        parser.description = (function.__doc__ or "").splitlines()[0]
        for action in parser._actions:
            if get_origin(hint := getattr(action, "_typehint", None)) is Literal:
                action.choices = get_args(hint)
            if action.dest in (*_FILES, *_FOLDERS):
                action.complete = shtab.FILE if action.dest in _FILES else shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
        branches[group].add_subcommand(word, parser)
    print(shtab.complete(tree, shell=shell))
    return 0
