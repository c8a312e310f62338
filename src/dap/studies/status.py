"""What has become of the runs of a study, read from their folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dap.errors import DapError
from dap.files import read_json
from dap.layout import FAILURE, LOCK, SPEC
from dap.specs import FORMAT
from dap.studies.study import Study
from dap.studies.work import Progress

State = Literal["done", "failed", "running", "stopped", "waiting"]


@dataclass(frozen=True)
class RunStatus:
    run: str
    state: State
    error: str = ""
    progress: str = ""  # how far it has come


def status(study: Study) -> list[RunStatus]:
    return [status_of(study, run) for run in study.runs]


def status_of(study: Study, run: str) -> RunStatus:
    """`running` means that a process holds it at this moment; `stopped`, that it has begun and nobody does."""
    try:
        return _status_of(study, run)
    except DapError as error:  # a damaged file: the others have a status all the same
        return RunStatus(run, "failed", str(error))


def _status_of(study: Study, run: str) -> RunStatus:
    folder = study.place(run)
    if (found := _format(folder)) not in (None, FORMAT):
        return RunStatus(
            run, "failed", f"{folder} has format {found}, this version of dap has {FORMAT}: choose another out"
        )
    if study.done(run):
        return RunStatus(run, "done")
    if _held(folder / LOCK):
        return RunStatus(run, "running", progress=_progress(folder))
    if (folder / FAILURE).exists():
        return RunStatus(run, "failed", read_json(folder / FAILURE).get("error", ""))
    if (folder / SPEC).exists():
        return RunStatus(run, "stopped", progress=_progress(folder))
    return RunStatus(run, "waiting")


def _format(folder: Path) -> object:
    """Of the run's folder; None if there is none."""
    file = folder / SPEC
    return read_json(file).get("format", "none") if file.exists() else None


def latest(folder: Path) -> Progress | None:
    """How far the run in `folder` has come, from its log: whoever works on it, wherever."""
    from dap.runs.folder import last_metrics
    from dap.trainer import told

    row = last_metrics(folder)
    if row is None or "steps" not in row:
        return None
    return Progress(row["stage"], row["step"], row["steps"], told(row))


def _progress(folder: Path) -> str:
    found = latest(folder)
    return f"{found.stage}, step {found.step} of {found.steps}" if found else ""


def _held(lock: Path) -> bool:
    from filelock import FileLock, Timeout

    if not lock.exists():
        return False
    probe = FileLock(lock)
    try:
        probe.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # nobody can work where nobody can write
        return False
    probe.release()
    return False


def forget_failure(study: Study, run: str) -> None:
    """So that it is tried again; what it had computed stays."""
    (study.place(run) / FAILURE).unlink(missing_ok=True)
