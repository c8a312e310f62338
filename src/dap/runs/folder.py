"""A run's folder: whose it is, what made it, what it saw, and how it ended.

spec.json          what was asked for, with the values of presets, and its id
environment.json   versions, machine and git state of every start that differs, and the seconds it took in all
metrics.jsonl      a line per step; of lines for one step, as after a resume, the last counts
failure.json       the traceback, if the last attempt failed
result.json        written last: the run is done
"""

import json
import os
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from dap.checkpoints import difference
from dap.engine import Engine
from dap.errors import DapError
from dap.files import check_inside, read_json, write_atomic
from dap.layout import ENVIRONMENT, FAILURE, LOCK, METRICS, RESULT, SPEC
from dap.runs.environment import environment
from dap.specs import FORMAT, KINDS, Spec, identity, read

_ROW = 2**14  # bytes, which hold at least one


class Busy(DapError):
    """Someone else is at it."""


class Metrics:
    """An append-only log of rows, one JSON object a line."""

    def __init__(self, file: TextIO):
        self.file, self.flushed = file, time.monotonic()

    def add(self, **row: Any) -> None:
        self.file.write(json.dumps(row) + "\n")
        if time.monotonic() - self.flushed > 1:
            self.flush()

    def flush(self) -> None:
        self.file.flush()
        self.flushed = time.monotonic()


@contextmanager
def working_in(folder: Path, spec: Spec, engine: Engine) -> Iterator[Metrics]:
    """Hold the folder for this run alone, write down what it is, and how it fails if it does."""
    if not engine.first:
        engine.ranks.wait()  # for the folder
        with open(os.devnull, "w") as nowhere:
            yield Metrics(nowhere)
        return
    _refuse_another(folder, spec)
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_links(folder)
    start = None
    lock = FileLock(folder / LOCK)  # the system lets go of it when the process ends, however it ends
    try:
        lock.acquire(timeout=0.5)  # whoever asks for its status holds it for a moment
    except Timeout:
        raise Busy(f"another process is working on {folder}: wait for it, or choose another folder") from None
    try:
        _refuse_another(folder, spec)
        if (folder / SPEC).exists():
            _sweep(folder)
        values = {"format": FORMAT, "kind": spec.kind, "id": identity(spec), "spec": asdict(spec)}
        if not (folder / SPEC).exists():
            write_json(folder / SPEC, values)
        _note_environment(folder / ENVIRONMENT)
        start = time.monotonic()
        engine.ranks.wait()
        with open(folder / METRICS, "a") as file:
            if file.tell() and not _ends_with_newline(folder / METRICS):  # killed in the middle of a line
                file.write("\n")
            yield Metrics(file)
        (folder / FAILURE).unlink(missing_ok=True)
    except Exception as error:
        if isinstance(error, OSError) and error.errno and error.filename is None:  # as of a log on a full disk
            error.filename = str(folder)
        note_failure(folder, error)
        raise
    finally:
        if start is not None:
            _note_seconds(folder / ENVIRONMENT, time.monotonic() - start)
        lock.release()


def finished(folder: Path, spec: Spec, *files: str) -> dict[str, Any] | None:
    """The result, if the run is done and has these files."""
    _refuse_another(folder, spec)
    return read_json(folder / RESULT) if all((folder / name).exists() for name in (RESULT, *files)) else None


def read_spec(folder: str | Path) -> Spec:
    """The specification of the run in `folder`."""
    file = Path(folder) / SPEC
    if not file.is_file():
        raise DapError(f"no {SPEC} in {folder}: give the folder of a run")
    values = read_json(file)
    if values.get("format") != FORMAT or values.get("kind") not in KINDS:
        found = values.get("format", "none")
        raise DapError(f"{file} has format {found}, this version of dap has {FORMAT}: make the run again")
    spec = read(KINDS[values["kind"]], values["spec"], str(file))
    if values.get("id") != identity(spec):  # it leaves open what presets have other values for since
        raise DapError(f"{file} asks for something else in this version of dap: make the run again")
    return spec


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of the log, the last one for each stage and step; half a line, as a kill leaves it, is left out."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for line in (Path(folder) / METRICS).read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        key = (row.get("stage", ""), row.get("step", 0))
        rows.pop(key, None)
        rows[key] = row
    return list(rows.values())


def last_metrics(folder: str | Path) -> dict[str, Any] | None:
    """The last whole row of the log, without reading all of it; None if there is none yet."""
    try:
        with open(Path(folder) / METRICS, "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - _ROW))
            whole = file.read().split(b"\n")[1 if file.tell() > _ROW else 0 : -1]
    except FileNotFoundError:
        return None
    for line in reversed(whole):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def write_json(file: Path, values: Any) -> None:
    write_atomic(file, json.dumps(values, indent=1).encode())


def as_read(values: Any) -> Any:
    """What reading them back will give."""
    return json.loads(json.dumps(values))


@contextmanager
def intact(file: Path) -> Iterator[None]:
    """Inside, what was read from `file` is taken apart: whatever is not as it was written is said of the file."""
    try:
        yield
    except DapError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DapError(f"{file} is damaged ({error!r}): remove the run's folder to start again") from None


def _refuse_another(folder: Path, spec: Spec) -> None:
    if (folder / SPEC).exists():
        theirs = read_spec(folder)
        if theirs.kind != spec.kind or identity(theirs) != identity(spec):
            known = difference(as_read(theirs.canonical()), as_read(spec.canonical()))
            raise DapError(f"{folder} holds a run with {known}: choose another folder, or remove it")


def _refuse_links(folder: Path) -> None:
    """A run writes in its folder and nowhere else: not through a link, of a file or a folder, that leads out of it."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            check_inside(folder, path)


_TEMPORARY = re.compile(r"\.(\w+\.json|[\w.-]+\.safetensors)\.\w{8}")  # as `dap.files` names what it writes


def _sweep(folder: Path) -> None:
    """Remove what a killed process of this run was writing: only we are in here."""
    for path in [*folder.glob(".*"), *folder.glob("*/.*"), *folder.glob("*/*/.*")]:
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _note_environment(file: Path) -> None:
    values = read_json(file) if file.exists() else {"starts": []}
    now = environment()
    if not values["starts"] or values["starts"][-1] != now:
        write_json(file, {**values, "starts": [*values["starts"], now]})


def _note_seconds(file: Path, seconds: float) -> None:
    with suppress(OSError):  # a full disk
        values = read_json(file)
        write_json(file, {**values, "seconds": round(values.get("seconds", 0) + seconds, 1)})


def note_failure(folder: Path, error: Exception) -> None:
    """Keep the traceback of the error that is being handled."""
    with suppress(OSError):  # a full disk may be what failed
        if (folder / FAILURE).is_symlink():  # it may lead out of the folder
            (folder / FAILURE).unlink()
        write_json(folder / FAILURE, {"error": str(error), "traceback": traceback.format_exc()})


def _ends_with_newline(file: Path) -> bool:
    with open(file, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"
