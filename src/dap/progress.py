"""Progress with rate and time left; quiet where there is no terminal."""

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
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    console = Console()
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal)


@contextmanager
def progress(description: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar for `total` steps; inside, each call advances it by one, or to `done`, and shows a short note.

    >>> with progress("mask learning", 2) as advance:
    ...     advance("loss 0.5")
    ...     advance("loss 0.4")
    """
    with bars(quiet) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(note: str = "", done: int | None = None) -> None:
            bar.update(task, advance=1 if done is None else None, completed=done, note=note)

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

        def advance(stage: str, step: int, steps: int, note: str) -> None:
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
