"""Progress with rate and time left: bars on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.1f}/s")


def bars(quiet: bool = False) -> Progress:
    """An empty display."""
    columns = (
        TextColumn("{task.description:16}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", markup=False),
    )
    console = Console()
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal)


class _Lines:
    """What bars show, as a line every half a minute: for logs."""

    EVERY = 30.0  # seconds

    def __init__(self) -> None:
        self.stage, self.start, self.first, self.told = "", 0.0, 0, 0.0

    def tell(self, stage: str, step: int, steps: int, note: str) -> None:
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.start, self.first, self.told = stage, now, step, now
        if now - self.told < self.EVERY or step <= self.first:
            return
        self.told = now
        left = duration((now - self.start) / (step - self.first) * (steps - step))
        print(f"{stage}: {step} of {steps}, about {left} left{note and f', {note}'}", file=sys.stderr, flush=True)


@contextmanager
def progress(description: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar for `total` steps; inside, each call advances it by one, or to `done`, and shows a short note.

    >>> with progress("mask learning", 2) as advance:
    ...     advance("loss 0.5")
    ...     advance("loss 0.4")
    """
    with stages(quiet) as tell:
        steps = 0

        def advance(note: str = "", done: int | None = None) -> None:
            nonlocal steps
            steps = steps + 1 if done is None else done
            tell(description, steps, total, note)

        yield advance


@contextmanager
def stages(quiet: bool = False) -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar for every stage of a longer task, made when it is first heard of.

    >>> with stages() as advance:
    ...     advance("scoring", 1, 2, "")
    ...     advance("fine-tuning", 1, 5, "loss 0.4")
    """
    with bars(quiet) as bar:
        tasks: dict[str, TaskID] = {}
        lines = None if quiet or bar.console.is_terminal else _Lines()

        def advance(stage: str, step: int, steps: int, note: str) -> None:
            if lines is not None:
                lines.tell(stage, step, steps, note)
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=steps, note="")
            bar.update(tasks[stage], completed=step, note=note)

        yield advance


def duration(seconds: float) -> str:
    """For people.

    >>> duration(5.2), duration(70), duration(3 * 3600 + 120)
    ('5 s', '1 min 10 s', '3 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
