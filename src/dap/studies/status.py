"""What has become of the runs of a study, read from their folders."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dap.studies.study import Study

State = Literal["done", "failed", "running", "stopped", "waiting"]


@dataclass(frozen=True)
class RunStatus:
    run: str
    state: State
    error: str = ""


def status(study: Study) -> list[RunStatus]:
    return [status_of(study, run) for run in study.runs]


def status_of(study: Study, run: str) -> RunStatus:
    """`running` means that a process holds it at this moment; `stopped`, that it has begun and nobody does."""
    folder = study.place(run)
    if study.done(run):
        return RunStatus(run, "done")
    if _held(folder / ".lock"):
        return RunStatus(run, "running")
    if (folder / "failure.json").exists():
        return RunStatus(run, "failed", json.loads((folder / "failure.json").read_text())["error"])
    return RunStatus(run, "stopped" if (folder / "spec.json").exists() else "waiting")


def _held(lock: Path) -> bool:
    from filelock import FileLock, Timeout

    if not lock.exists():
        return False
    probe = FileLock(lock)
    try:
        probe.acquire(timeout=0)
    except Timeout:
        return True
    probe.release()
    return False


def forget_failure(study: Study, run: str) -> None:
    """So that it is tried again; what it had computed stays."""
    (study.place(run) / "failure.json").unlink(missing_ok=True)
