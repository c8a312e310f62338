"""What has become of the runs of a study, read from their folders."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from dap.errors import DapError
from dap.specs.file_names import ENVIRONMENT, FAILURE, LOCK, METRICS, RESULT, SPEC
from dap.specs.run_files import Damaged, check_run, intact, read_json
from dap.specs.runs import FORMAT
from dap.studies.study import Study
from dap.studies.work import Progress

DAMAGED = "damaged"  # beside the runs: what was set aside
State = Literal["done", "failed", "damaged", "running", "stopped", "waiting"]


@dataclass(frozen=True)
class RunStatus:
    run: str
    state: State
    error: str = ""
    progress: str = ""  # how far it has come


def status(study: Study) -> list[RunStatus]:
    return [status_of(study, run) for run in study.runs]


def status_of(study: Study, run: str) -> RunStatus:
    """`running` means that a process holds it at this moment; `stopped`, that it has begun and nobody does.

    `damaged` means that a file in its folder is not as it was written.
    """
    try:
        return _status_of(study, run)
    except Damaged as error:  # the others have a status all the same
        return RunStatus(run, "damaged", str(error))
    except DapError as error:
        return RunStatus(run, "failed", str(error))


def _status_of(study: Study, run: str) -> RunStatus:
    folder = study.place(run)
    if (found := _format(folder)) not in (None, FORMAT):
        return RunStatus(
            run, "failed", f"{folder} has format {found}, this version of dap has {FORMAT}: choose another out"
        )
    if not study.done(run) and _held(folder / LOCK):
        return RunStatus(run, "running", progress=_progress(folder))
    check_run(folder)
    if study.done(run):
        return RunStatus(run, "done")
    if (folder / FAILURE).exists():
        return RunStatus(run, "failed", str(read_json(folder / FAILURE)["error"]))
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
    from dap.training.step import told

    row = last_metrics(folder)
    if row is None or "steps" not in row:
        return None
    with intact(folder / METRICS):
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


def set_aside(study: Study, run: str) -> None:
    """Move what is damaged in a run's folder to `damaged`, beside the runs, so that the run can be done again.

    A file that the run writes again is moved alone, and the run goes on from its checkpoint. Without one of the others
    nobody can tell what the rest of the folder is, so all of it is moved.
    """
    from filelock import FileLock, Timeout

    folder = study.place(run)
    with suppress(Timeout), FileLock(folder / LOCK, timeout=0.5):  # held: someone is working on it
        while (file := _damaged(folder)) is not None:
            if file.name in (FAILURE, ENVIRONMENT):
                _move(study, file)
            elif file.name == RESULT:
                for result in {file, folder / RESULT}:  # with that of a sparse model also that of the run
                    _move(study, result)
            else:
                _move(study, folder)


def _move(study: Study, path: Path) -> None:
    aside = study.folder / DAMAGED / "-".join(path.relative_to(study.folder).parts)
    aside.parent.mkdir(exist_ok=True)
    names = (aside.with_name(f"{aside.name}-{number}") for number in count(1))
    with suppress(FileNotFoundError):
        path.rename(next(name for name in names if not name.exists()))


def _damaged(folder: Path) -> Path | None:
    try:
        check_run(folder)
    except Damaged as error:
        return error.file
    return None


def forget_failure(study: Study, run: str) -> None:
    """So that it is tried again; what it had computed stays."""
    (study.place(run) / FAILURE).unlink(missing_ok=True)
