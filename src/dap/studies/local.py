"""The runs of a study by worker processes on this machine."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dap.studies.events import Events
from dap.studies.status import status_of
from dap.studies.study import Study
from dap.studies.work import Progress, work_on

_PAUSE = 0.5  # seconds between looks at runs that others are working on


@dataclass
class Worker:
    number: int  # among those at work
    process: BaseProcess
    pipe: Connection
    run: str | None = None


@dataclass
class Crew:
    """Hands out the runs of a study, in an order that respects what they need, and sees to it that all are done."""

    study: Study
    workers: int
    threads: int
    retries: int
    events: Events
    pending: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    later: dict[str, float] = field(default_factory=dict)  # runs that others have, and when to look again
    crew: list[Worker] = field(default_factory=list)

    def work(self) -> dict[str, str]:
        try:
            while self.pending or any(worker.run for worker in self.crew):
                self._hand_out()
                if not any(worker.run for worker in self.crew) and not self.later:
                    lost = [run for run in self.study.again_for(self.pending) if run not in self.outcomes]
                    if not lost:
                        break  # what is left needs runs that failed
                    self.pending = lost + self.pending
                    continue
                self._listen()
        finally:
            self._dismiss()
        return self.outcomes

    # ---- handing out

    def _hand_out(self) -> None:
        while (run := self._next()) is not None:
            worker = next((worker for worker in self.crew if worker.run is None), None)
            if worker is None:
                if len(self.crew) == self.workers:
                    return
                worker = self._hire()
            found = status_of(self.study, run)
            if found.state == "running":  # in someone else's hands
                self.later[run] = time.monotonic() + _PAUSE
                continue
            self.pending.remove(run)
            self.later.pop(run, None)
            if found.state == "failed":
                self._ended(run, "failed", found.error)
                continue
            try:
                worker.pipe.send(self.study.runs[run])
            except OSError:  # killed while it had nothing to do
                self.pending.insert(0, run)
                self._lost(worker)
            else:
                worker.run = run

    def _next(self) -> str | None:
        now = time.monotonic()
        for run in self.pending:
            if self.later.get(run, 0) <= now and self.study.can_begin(run):
                return run
        return None

    def _hire(self) -> Worker:
        context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
        ours, theirs = context.Pipe()
        number = min(set(range(self.workers)) - {worker.number for worker in self.crew})
        process = context.Process(target=_worker, args=(theirs, self.study.folder, self.threads, number), daemon=False)
        with _inherited(self.threads):
            process.start()
        theirs.close()  # so that its end is seen when the worker's is gone
        self.crew.append(Worker(number, process, ours))
        return self.crew[-1]

    # ---- listening

    def _listen(self) -> None:
        pipes: dict[Any, Worker] = {worker.pipe: worker for worker in self.crew}
        for pipe in wait(list(pipes), timeout=_PAUSE):
            worker = pipes[pipe]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):  # also in the middle of a message
                self._lost(worker)
                continue
            run = worker.run
            assert run is not None
            if isinstance(message, Progress):
                self.events.progress(run, message)
                continue
            outcome, error = message
            worker.run = None
            if outcome == "busy":
                self.pending.append(run)
                self.later[run] = time.monotonic() + _PAUSE
            else:
                self._ended(run, outcome, error)

    def _lost(self, worker: Worker) -> None:
        """The system, or someone, killed a worker: its run is tried again."""
        self.crew.remove(worker)
        worker.pipe.close()
        worker.process.join()
        run = worker.run
        if run is None:
            return
        self.kills[run] += 1
        if self.kills[run] <= self.retries:
            self.pending.insert(0, run)
            self.events.lost(run, self.kills[run])
            return
        error = f"its process was killed {self.kills[run]} times (exit code {worker.process.exitcode}): out of memory?"
        from dap.runs.folder import note_failure

        folder = self.study.place(run)
        folder.mkdir(parents=True, exist_ok=True)
        note_failure(folder, RuntimeError(error))
        self._ended(run, "failed", error)

    def _ended(self, run: str, outcome: str, error: str) -> None:
        self.outcomes[run] = outcome
        self.events.ended(run, outcome, error)

    def _dismiss(self) -> None:
        for worker in self.crew:
            worker.pipe.close()  # an idle worker ends, one at work at its next step
        for worker in self.crew:
            worker.process.join(timeout=60)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


@contextmanager
def _inherited(threads: int) -> Iterator[None]:
    """Inside, processes begin with so many threads, and do not mind Ctrl-C: it is for the steps of a run to see it."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    main = threading.current_thread() is threading.main_thread()  # signals are its own
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def run_locally(
    study: Study, runs: list[str], workers: int, threads: int = 1, retries: int = 3, events: Events | None = None
) -> dict[str, str]:
    """Do `runs` with so many processes of so many threads each; how each ended."""
    return Crew(study, workers, threads, retries, events or Events(), pending=list(runs)).work()


def _worker(pipe: Connection, folder: Path, threads: int, number: int) -> None:
    """Does what comes through the pipe, until nothing comes any more. Workers take turns on the machine's GPUs."""
    import torch

    torch.set_num_threads(threads)
    device = f"cuda:{number % torch.cuda.device_count()}" if torch.cuda.is_available() else None
    told, at_work, asked = 0.0, False, False

    def stop(number: int, frame: Any) -> None:  # a scheduler asks all processes at once
        nonlocal asked
        asked = True
        if not at_work:
            raise SystemExit(1)

    signal.signal(signal.SIGTERM, stop)

    def tell(progress: Progress) -> None:
        nonlocal told
        if asked or pipe.poll():  # or nobody is at the other end any more
            raise SystemExit(1)
        if time.monotonic() - told > 0.2 or progress.step == progress.steps:
            pipe.send(progress)
            told = time.monotonic()

    try:
        while True:
            spec = pipe.recv()
            at_work = True
            pipe.send(work_on(spec, folder, tell, device))
            at_work = False
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
