"""Progress with rate and time left; quiet where there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar for `total` steps; inside, each call advances it by one and shows a short note.

    >>> with progress("mask learning", 2) as advance:
    ...     advance("loss 0.5")
    ...     advance("loss 0.4")
    """
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(note: str = "") -> None:
            bar.update(task, advance=1, note=note)

        yield advance
