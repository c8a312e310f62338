"""Progress with rate and time left; quiet where there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.1f}/s")


@contextmanager
def progress(description: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar for `total` steps; inside, each call advances it by one, or to `done`, and shows a short note.

    >>> with progress("mask learning", 2) as advance:
    ...     advance("loss 0.5")
    ...     advance("loss 0.4")
    """
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    console = Console()
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(note: str = "", done: int | None = None) -> None:
            bar.update(task, advance=1 if done is None else None, completed=done, note=note)

        yield advance
