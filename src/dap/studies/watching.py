"""A study for the eye: bars on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import TaskID

from dap.progress import bars
from dap.specs import BestSpec, PruneSpec, Spec, TrainSpec
from dap.studies.events import Events
from dap.studies.study import Study
from dap.studies.work import Progress


@contextmanager
def watched(study: Study, total: int, done: int, quiet: bool = False) -> Iterator[Events]:
    """Events that are shown: a bar for the whole study, and one for every run at work."""
    console = Console()
    lines = not quiet and not console.is_terminal
    with bars(quiet) as display:
        whole = display.add_task(f"{study.name}: all runs", total=total, completed=done, note="")
        tasks: dict[str, TaskID] = {}

        def progress(run: str, news: Progress) -> None:
            if run not in tasks:
                tasks[run] = display.add_task("", total=news.steps, note="")
            title = f"{in_words(study.runs[run])}: {news.stage}"
            display.update(tasks[run], description=title, total=news.steps, completed=news.step, note=news.text)

        def ended(run: str, outcome: str, error: str) -> None:
            nonlocal done
            if (task := tasks.pop(run, None)) is not None:
                display.remove_task(task)
            done += outcome == "done"
            display.update(whole, completed=done)
            if lines:
                print(f"{run} {outcome}: {error or in_words(study.runs[run])} ({done} of {total})", flush=True)
            elif error and not quiet:
                display.console.print(f"{run} {outcome}: {error}", markup=False)

        def lost(run: str, times: int) -> None:
            if (task := tasks.pop(run, None)) is not None:
                display.remove_task(task)
            if lines:
                print(f"{run} was killed ({times}): trying again", flush=True)

        yield Events(progress, ended, lost)


def in_words(spec: Spec) -> str:
    """What a run is about, in short."""
    if isinstance(spec, TrainSpec):
        return f"{spec.suite} without {'+'.join(spec.targets)}, {spec.objective}, seed {spec.train.seed}"
    if isinstance(spec, PruneSpec):
        dense = in_words(spec.dense) if isinstance(spec.dense, TrainSpec | BestSpec) else spec.dense
        return f"{spec.method} on {dense}"
    return f"best of {len(spec.candidates)}, {in_words(spec.candidates[0])}"
