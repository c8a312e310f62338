"""A study for the eye: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import TaskID

from dap.runtime.progress import bars, duration
from dap.specs.runs import EvaluateSpec, ModelSpec, PruneSpec, Spec, TrainSpec
from dap.studies.events import Events
from dap.studies.study import Study
from dap.studies.work import Progress


@contextmanager
def watched(study: Study, total: int, done: int, quiet: bool = False) -> Iterator[Events]:
    """Events that are shown: a bar for the whole study, and one for every run at work."""
    console, start, before = Console(), time.monotonic(), done
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
                took = (time.monotonic() - start) / max(1, done - before)
                left = f", about {duration(took * (total - done))} left" if before < done < total else ""
                print(f"{run} {outcome}: {error or in_words(study.runs[run])} ({done} of {total}{left})", flush=True)
            elif error and not quiet:
                display.console.print(f"{run} {outcome}: {error}", markup=False)

        def lost(run: str, times: int) -> None:
            if (task := tasks.pop(run, None)) is not None:
                display.remove_task(task)
            if lines:
                print(f"{run} was killed ({times}): trying again", flush=True)

        yield Events(progress, ended, lost)


def in_words(spec: Spec | ModelSpec | str) -> str:
    """What a run is about, in short."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, ModelSpec):
        return f"{spec.model} on {spec.suite}"
    if isinstance(spec, EvaluateSpec):
        return f"evaluation of {in_words(spec.run)}"
    if isinstance(spec, TrainSpec):
        return f"{spec.suite} without {'+'.join(spec.targets)}, {spec.objective}, seed {spec.train.seed}"
    if isinstance(spec, PruneSpec):
        return f"{spec.method} on {in_words(spec.dense)}"
    chosen = " by left-out domains" if spec.left_out else ""
    return f"best of {len(spec.candidates)}{chosen}, {in_words(spec.candidates[0])}"
