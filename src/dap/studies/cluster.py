"""The runs of a study on a Ray cluster, whose machines share the study's folder."""

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from dap.errors import DapError
from dap.studies.events import Events
from dap.studies.status import latest
from dap.studies.study import Study
from dap.studies.work import work_on

_PAUSE = 1.0  # seconds between looks


def run_on_ray(
    study: Study,
    runs: list[str],
    address: str | None = None,
    gpus: float = 0.0,
    retries: int = 3,
    events: Events | None = None,
) -> dict[str, str]:
    """Do `runs` wherever the cluster has room: `study.threads` processors for each, and `gpus`.

    A run whose machine is lost starts again elsewhere, from its last checkpoint.
    """
    try:
        import ray
    except ImportError:
        raise DapError("a cluster needs ray: pip install 'dap[cluster]'") from None
    if not runs:
        return {}
    events = events or Events()
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise DapError(f"no ray cluster at {address}: {error}") from None
    try:
        _require(ray, study.threads, gpus)
        return _Schedule(study, runs, _task(ray, study.threads, gpus, retries), ray, events).work()
    finally:
        if ours:
            ray.shutdown()


def _require(ray: Any, threads: int, gpus: float) -> None:
    """Refuse to wait for a machine that is not there."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(found.get("CPU", 0) >= threads and found.get("GPU", 0) >= gpus for found in machines):
        wished = f"{threads} processors" + (f" and {gpus:g} GPUs" if gpus else "")
        raise DapError(f"no machine of the ray cluster has {wished}, which every run needs: lower threads or --gpus")


def _task(ray: Any, threads: int, gpus: float, retries: int) -> Any:
    def work(spec: Any, folder: str, here: str) -> tuple[str, str]:
        import torch

        if not Path(folder).is_dir():
            raise DapError(f"{socket.gethostname()} does not see {folder}: keep the study where all machines do")
        if Path(here).is_dir():
            os.chdir(here)  # what the specification says about files is meant from there
        torch.set_num_threads(threads)
        return work_on(spec, Path(folder), lambda progress: None, "cuda" if gpus else None)

    # One process for each run: threads and memory of the one before play no part.
    return ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=retries, max_calls=1)(work)


class _Schedule:
    """Hands a run to the cluster as soon as what it needs is done."""

    def __init__(self, study: Study, runs: list[str], task: Any, ray: Any, events: Events):
        self.study, self.pending, self.task, self.ray, self.events = study, list(runs), task, ray, events
        self.outcomes: dict[str, str] = {}
        study.folder.mkdir(parents=True, exist_ok=True)
        self.places = str(study.folder.resolve()), os.getcwd()

    def work(self) -> dict[str, str]:
        at_work: dict[Any, str] = {}
        while True:
            for run in [run for run in self.pending if self.study.can_begin(run)]:
                self.pending.remove(run)
                at_work[self.task.remote(self.study.runs[run], *self.places)] = run
            if not at_work:
                lost = [run for run in self.study.again_for(self.pending) if run not in self.outcomes]
                if not lost:
                    return self.outcomes  # what is pending needs runs that failed
                self.pending = lost + self.pending
                continue
            ready, _ = self.ray.wait(list(at_work), timeout=_PAUSE)
            for run in at_work.values():
                if (news := latest(self.study.place(run))) is not None:
                    self.events.progress(run, news)
            for reference in ready:
                run = at_work.pop(reference)
                outcome, error = self._outcome(reference, run)
                if outcome == "busy":  # in someone else's hands
                    self.pending.append(run)
                    time.sleep(_PAUSE)
                else:
                    self.outcomes[run] = outcome
                    self.events.ended(run, outcome, error)

    def _outcome(self, reference: Any, run: str) -> tuple[str, str]:
        from dap.runs.folder import note_failure

        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # its process died more often than it may
            cause = getattr(error, "cause", None) or str(error).splitlines()[0]
            self.study.place(run).mkdir(exist_ok=True)
            note_failure(self.study.place(run), RuntimeError(str(cause)))
            return "failed", str(cause)
