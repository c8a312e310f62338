"""Where steps run, and the loop around them: devices, precision, several processes, Ctrl-C, checkpoints."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import torch

from dap.config import check_counts
from dap.errors import DapError
from dap.runtime.batches import Batches
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.sources import Source, batch_stream, draws_alone, to_device

PRECISIONS = ("32-true", "bf16-mixed")

T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """One process on the device where the model is, in the model's own precision; `launch` gives others."""

    ranks: Ranks = ALONE
    device: torch.device | None = None  # None: where the model is
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.ranks.rank == 0


def launch(
    devices: int | str = 1,
    nodes: int = 1,
    precision: str = "32-true",
    accelerator: str = "auto",
    oversubscribe: bool = False,
) -> Engine:
    """Start `devices` processes on each of `nodes` machines, with Lightning Fabric; each of them goes on from here.

    They are started by running the program's own command again, so call it early. Under torchrun or Slurm, which start
    processes themselves, they only find each other. `precision="bf16-mixed"` runs in bfloat16 where it is safe. More
    processes on CPUs than there are cores need `oversubscribe`.
    """
    if precision not in PRECISIONS:
        raise DapError(f"precision is {precision!r}; choose one of {', '.join(PRECISIONS)}")
    from lightning_fabric import Fabric  # seconds to import

    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=precision,  # pyright: ignore[reportArgumentType]  # checked there
        )
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        wish = f"accelerator={accelerator}, devices={devices}, nodes={nodes}, precision={precision}"
        raise DapError(f"cannot run on {wish}: {error}") from None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = fabric.world_size // nodes
    started = {"LOCAL_RANK", "SLURM_PROCID"} & os.environ.keys()  # by torchrun, Slurm, or the first process
    if fabric.device.type == "cpu" and processes > cores and not (oversubscribe or started):
        raise DapError(f"devices is {processes}, and there are {cores} cores: lower it, or give --oversubscribe")
    fabric.launch()
    return Engine(Ranks(fabric.global_rank, fabric.world_size), fabric.device, fabric.autocast)


def engine_on(device: str | None, precision: str = "32-true") -> Engine:
    """One process, on a device: without Fabric, for whoever has started the process."""
    found = None if device is None else torch.device(device)
    if precision == "32-true":
        return Engine(device=found)
    kind = "cpu" if found is None else found.type
    return Engine(device=found, precision=lambda: torch.autocast(kind, torch.bfloat16))


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Inside, torch has so many threads."""
    check_counts(threads=count)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Job(Protocol):
    """Work that is done in steps, each on one batch per domain."""

    @property
    def steps_done(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def step(self, batches: Batches) -> Any:
        """One step, with what follows from it; or an error that leaves everything as it was."""
        ...

    def save(self) -> None:
        """Write down all that going on later needs."""
        ...

    def fingerprint(self) -> int:
        """A number that differs where the models do."""
        ...


def run(
    job: Job,
    sources: Mapping[str, Source],
    engine: Engine,
    *,
    batch_size: int,
    seed: int,
    save_every: int,
    device: torch.device,
    on_step: Callable[[Any], None] | None = None,
) -> bool:
    """Step until the job is finished; whether Ctrl-C ended it before.

    The job is saved every `save_every` steps, at the end, on Ctrl-C, and when a step fails: nothing that was computed
    before is lost. All processes stop together.
    """
    if not engine.ranks.same(job.steps_done):
        raise DapError("the processes would not go on from the same step: keep the checkpoint where all can read it")
    if engine.ranks.size > 1 and not engine.ranks.same(job.fingerprint()):
        raise DapError("the processes have different models: build them from the same weights and the same seed")
    streams = {
        domain: batch_stream(domain, source, batch_size, seed, job.steps_done, engine.ranks)
        for domain, source in sources.items()
    }
    steps = ({domain: next(stream) for domain, stream in streams.items()} for _ in count())
    if device.type != "cpu" and all(map(draws_alone, sources.values())):
        steps = ahead(steps)  # on a CPU the step itself needs the cores
    saved = whole = job.steps_done  # whole: the last step that was done to its end, evaluation included

    def save() -> None:
        nonlocal saved
        if saved != whole == job.steps_done:
            if engine.first:
                job.save()
            saved = whole

    with _interruptible() as interrupt:
        try:
            while not (job.finished or engine.ranks.agree(interrupt.requested)):
                batches = to_device(next(steps), device)
                with engine.precision():
                    stats = job.step(batches)
                whole = job.steps_done
                if on_step is not None:
                    on_step(stats)  # before the checkpoint: a log has the rows of all steps that one covers
                if whole % save_every == 0:
                    save()
        except (Exception, SystemExit):  # whoever watches may end it: a worker of a study whose study has ended
            save()
            # Ctrl-C reaches the workers of a loader too, and its complaint is not the user's. Other processes, though,
            # would wait for this one.
            if engine.ranks.size > 1 or not (interrupt.requested and whole == job.steps_done):
                raise
        save()
    engine.ranks.wait()  # what was saved is there for all of them
    return not job.finished


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in the background while the one before is in use."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items)
        while True:
            item = coming.result()
            coming = thread.submit(next, items)
            yield item


@contextmanager
def _interruptible() -> Iterator[SimpleNamespace]:
    """Inside, the first Ctrl-C only asks to stop, so that no step is left half done."""
    state = SimpleNamespace(requested=False)
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield state
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        state.requested = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before)
