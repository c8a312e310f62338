"""A run's folder: whose it is, what made it, what it saw, and how it ended.

spec.json          what was asked for, with the values of presets, and its id
environment.json   versions, machine and git state of every start that differs, and the seconds it took in all
metrics.jsonl      a line per step; of lines for one step, as after a resume with other numbers, the last counts
failure.json       the traceback, if the last attempt failed
result.json        written last: the run is done
"""

import json
import os
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from dap.errors import DapError
from dap.runs.environment import environment
from dap.runtime.checkpoints import difference
from dap.runtime.engine import Engine
from dap.runtime.files import check_inside, syncing_first
from dap.specs.file_names import ENVIRONMENT, FAILURE, LOCK, METRICS, RESULT, SPEC
from dap.specs.run_files import (
    Damaged,
    as_read,
    digest_of_spec,
    intact,
    log_rows,
    read_json,
    read_result,
    read_row,
    read_spec,
    row_line,
    write_json,
)
from dap.specs.runs import FORMAT, Spec, identity

_ROW = 2**14  # bytes, which hold at least one


class Busy(DapError):
    """Someone else is at it."""


class Metrics:
    """An append-only log of rows, one JSON object a line.

    A resumed run repeats the steps after its checkpoint. A row that is in the log already is not written again, so that
    the log is the one of a run that was never interrupted. Steps that a checkpoint covers must be in the log.
    """

    def __init__(self, file: TextIO, run: str = "", rows: Iterable[tuple[int, dict[str, Any]]] = ()):
        self.file, self.run, self.count, self.synced = file, run, 0, True
        self.rows: dict[tuple[str, int], str] = {}
        for self.count, row in rows:
            self.rows[_key(row)] = json.dumps(row)

    def add(self, **row: Any) -> None:
        (stage, step), text = _key(row), json.dumps(row)
        if self.rows.get((stage, step)) == text:
            return
        if self.run and step > 1 and (stage, step - 1) not in self.rows:  # earlier versions could lose some
            raise Damaged(Path(self.file.name), f"{stage} is at step {step}, and the row of the step before is missing")
        self.rows[stage, step] = text
        self.count += 1
        self.file.write(row_line(row, self.count, self.run))
        self.file.flush()
        self.synced = False

    def sync(self) -> None:
        """Rows that were added survive a power failure from here on."""
        if not self.synced:
            os.fsync(self.file.fileno())
            self.synced = True


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
        values = {"format": FORMAT, "kind": spec.kind, "id": identity(spec), "spec": asdict(spec)}
        begun = (folder / SPEC).exists()
        _sweep(folder, _TEMPORARY if begun else _TEMPORARY_SPEC)
        if not begun:
            write_json(folder / SPEC, values)
        _note_environment(folder / ENVIRONMENT)
        (folder / FAILURE).unlink(missing_ok=True)  # of an earlier attempt
        start = time.monotonic()
        engine.ranks.wait()
        with _log(folder / METRICS) as metrics, syncing_first(metrics.sync):
            yield metrics
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
    return read_result(folder) if all((folder / name).exists() for name in (RESULT, *files)) else None


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of the log, the last one for each stage and step; half a line, as a kill leaves it, is left out."""
    log = Path(folder) / METRICS
    with intact(log):
        return list({_key(row): row for _, row in log_rows(log)}.values())


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
            return read_row(line)[0]
        except ValueError:
            continue
    return None


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


_TEMPORARY = re.compile(
    r"\.(\w+\.(json|png)|[\w.-]+\.safetensors)\.\w{8}"
)  # as `dap.runtime.files` names what it writes


_TEMPORARY_SPEC = re.compile(r"\.spec\.json\.\w{8}")  # all that a run leaves before the folder is known to be its own


def _sweep(folder: Path, names: re.Pattern[str]) -> None:
    """Remove what a killed process of this run was writing. Only this process works in the folder."""
    for path in [*folder.glob(".*"), *folder.glob("*/.*"), *folder.glob("*/*/.*")]:
        if names.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _note_environment(file: Path) -> None:
    values = read_json(file, "starts") if file.exists() else {"starts": []}
    now = environment()
    with intact(file):
        if not values["starts"] or values["starts"][-1] != now:
            write_json(file, {**values, "starts": [*values["starts"], now]})


def _note_seconds(file: Path, seconds: float) -> None:
    with suppress(OSError, Damaged), intact(file):  # a full disk, and what the next reader will say
        values = read_json(file)
        write_json(file, {**values, "seconds": round(values.get("seconds", 0) + seconds, 1)})


def note_failure(folder: Path, error: Exception) -> None:
    """Keep the traceback of the error that is being handled."""
    with suppress(OSError):  # a full disk may be what failed
        if (folder / FAILURE).is_symlink():  # it may lead out of the folder
            (folder / FAILURE).unlink()
        write_json(folder / FAILURE, {"error": str(error), "traceback": traceback.format_exc()})


@contextmanager
def _log(path: Path) -> Iterator[Metrics]:
    with open(path, "a") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)  # what a kill left of a line
        with intact(path):
            metrics = Metrics(file, digest_of_spec(path.parent), log_rows(path))
        yield metrics


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row.get("stage", ""), row.get("step", 0)
