"""The command line: a table of verbs, and how they end."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dap.cli.completion import completion_script
from dap.cli.data import data_check
from dap.cli.evaluate import evaluate_models
from dap.cli.export import export_model
from dap.cli.predict import predict_images
from dap.cli.prune import prune_suite
from dap.cli.report import report_runs
from dap.cli.study import study_retry, study_run, study_status
from dap.cli.train import train_suite
from dap.errors import DapError

# Each verb, of one word or two, is a function.
VERBS: dict[str, Callable[..., int]] = {
    "train": train_suite,
    "prune": prune_suite,
    "evaluate": evaluate_models,
    "study run": study_run,
    "study status": study_status,
    "study retry": study_retry,
    "report": report_runs,
    "export": export_model,
    "predict": predict_images,
    "data check": data_check,
    "completion": completion_script,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 for success, 1 for what a user can fix, 2 for wrong usage, 130 for Ctrl-C or SIGTERM.

    141, as shells have it, if the reader of the output has left, which is no error: `dap report … | head -1`.
    """
    try:
        return _run(arguments)
    except DapError as error:
        print(f"dap: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("dap: there is not enough memory: take smaller batches or images", file=sys.stderr)
        return 1
    except OSError as error:
        if _undelivered() is None:
            print(f"dap: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dap: interrupted", file=sys.stderr)
        return 130
    finally:
        if (error := _undelivered()) is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again, and complain
            if isinstance(error, BrokenPipeError):
                sys.exit(141)
            print(f"dap: standard output: {error.strerror}", file=sys.stderr)
            sys.exit(1)


def _run(arguments: Sequence[str] | None) -> int:
    if arguments is None:  # the process is ours
        signal.signal(signal.SIGTERM, _as_ctrl_c)
    with suppress(AttributeError):  # names of files need not be text: one that cannot be printed is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"dap {version('dap')}")
        return 0
    verb = next((verb for verb in VERBS if given[: len(verb.split())] == verb.split()), None)
    if verb is None:
        return _overview(given)
    from dap.cli.arguments import call

    if verb == "prune":  # the model is what is pruned, with its name or without
        given = [argument.removeprefix("--model=") for argument in given if argument != "--model"]
    with _warnings_as_lines():
        return call(VERBS[verb], f"dap {verb}", given[len(verb.split()) :])


def _undelivered() -> OSError | None:
    """Why what was printed cannot be written, if it cannot."""
    try:
        if sys.stdout is not None:  # as it is where a shell has closed it
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Each warning is one line, and is printed once, by the first of the processes that share the work."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    told: set[str] = set()

    def tell(message: Warning | str, *place: Any) -> None:
        line = " ".join(str(message).split())
        if first and line not in told:
            told.add(line)
            print(f"dap: warning: {line}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = tell
        yield


def _as_ctrl_c(number: int, frame: Any) -> None:
    """A scheduler's way to ask. In the background of a shell Ctrl-C itself is ignored, and this is not."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


def _overview(given: Sequence[str]) -> int:
    """What there is, for whoever asks or has not named a verb."""
    asked = not given or given[-1] in ("-h", "--help")
    if not asked:
        below = [verb for verb in VERBS if verb.startswith(f"{given[0]} ")]
        called = " ".join(given[: 2 if below else 1])
        wrong = f"{called} needs a verb" if below and len(given) == 1 else f"there is no verb {called!r}"
        print(f"dap: {wrong}; choose one of {', '.join(below or VERBS)}", file=sys.stderr)
        return 2
    known = "\n".join(f"  dap {verb:12} {(function.__doc__ or '').splitlines()[0]}" for verb, function in VERBS.items())
    print(f"usage: dap <verb> … (dap <verb> --help for its options)\n\n{known}")
    return 0
