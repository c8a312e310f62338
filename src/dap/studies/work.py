"""One run of a study, by whoever does it: a local worker, a machine of a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from dap.errors import DapError
from dap.specs.runs import BestSpec, EvaluateSpec, PruneSpec, Spec, TrainSpec, folder_name

Outcome = Literal["done", "failed", "busy"]


class Progress(NamedTuple):
    """How far a run has come."""

    stage: str
    step: int
    steps: int
    text: str


def work_on(
    spec: Spec, study: Path, tell: Callable[[Progress], None], device: str | None = None
) -> tuple[Outcome, str]:
    """Do the run, or what is left of it, on `device`; how it ended, with the error if there was one."""
    from dap.runs.folder import Busy, note_failure

    folder = study / folder_name(spec)
    try:
        _do(spec, folder, tell, device)
    except Busy as busy:
        return "busy", str(busy)
    except Exception as error:
        note_failure(folder, error)
        return "failed", str(error) if isinstance(error, DapError) else f"{type(error).__name__}: {error}"
    return "done", ""


def _do(spec: Spec, folder: Path, tell: Callable[[Progress], None], device: str | None) -> None:
    from dap.runs import choose_best, evaluate_run, prune_dense, train_dense
    from dap.runtime.engine import engine_on

    engine = engine_on(device, getattr(spec, "precision", "32-true"))
    if isinstance(spec, TrainSpec):
        steps = spec.resolved().train.steps
        result = train_dense(
            spec,
            folder,
            engine=engine,
            on_step=lambda stats: tell(Progress("training", stats.step, steps, stats.words())),
        )
        if result["interrupted"]:
            raise KeyboardInterrupt
    elif isinstance(spec, PruneSpec):
        prune_dense(spec, folder, engine=engine, on_step=lambda news: tell(Progress(*news[:4])))
    elif isinstance(spec, BestSpec):
        choose_best(spec, folder)
    elif isinstance(spec, EvaluateSpec):
        evaluate_run(
            spec,
            folder,
            engine=engine,
            on_step=lambda stage, number, count: tell(Progress(stage, number, count, "")),
        )
