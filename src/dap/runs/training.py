"""Dense training as a run: from a specification to a folder with its result."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dap.data import Suite
from dap.errors import DapError
from dap.models import Classifier, ModelCard, create_classifier
from dap.objectives import OBJECTIVES, Objective
from dap.runs.dense import save_dense
from dap.runs.folder import finished, working_in
from dap.runs.sources import Sources, divide, listings, notes_of, on_targets, suite_of
from dap.runtime.engine import Engine, threads
from dap.runtime.sources import check_memory
from dap.specs.file_names import IMAGES, MODEL, OBJECTIVE, SPEC, STATE
from dap.specs.run_files import as_read, read_json, write_json, write_result
from dap.specs.runs import TrainSpec
from dap.training.loop import Dense, train
from dap.training.step import TrainStats


def make_objective(name: str, options: Mapping[str, Any], suite: str) -> Objective:
    if name not in OBJECTIVES:
        raise DapError(f"there is no objective {name!r}; choose one of {', '.join(OBJECTIVES)}")
    known = OBJECTIVES[name]().options()
    for option, value in options.items():
        if option not in known:
            raise DapError(f"objective {name!r} does not take {option}; its options: {', '.join(known) or 'none'}")
        is_number = isinstance(value, int | float) or not isinstance(known[option], int | float)
        is_list = isinstance(value, list | tuple)
        if isinstance(value, str) or not is_number or isinstance(known[option], list) != is_list:
            raise DapError(f"option {option} of objective {name!r} is {value!r}; its default is {known[option]!r}")
    return OBJECTIVES[name](**{**OBJECTIVES[name].defaults_for(suite), **options})


def train_dense(
    spec: TrainSpec,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    on_step: Callable[[TrainStats], None] | None = None,
) -> dict[str, Any]:
    """Train, save model and objective in `folder`, and evaluate on the unseen domains. A run that was stopped goes on.

    >>> from dap.config import TrainConfig
    >>> spec = TrainSpec("digits", ("rotated",), backbone="small_resnet", weights=None, train=TrainConfig(steps=2))
    >>> list(train_dense(spec, tmp / "run")["targets"])
    ['rotated']
    """
    spec, engine, folder = spec.resolved(), engine or Engine(), Path(folder)
    if (done := finished(folder, spec, MODEL, OBJECTIVE)) is not None:
        return done
    objective = make_objective(spec.objective, spec.options, spec.suite)
    suite = suite_of(spec)
    sources = divide(suite, spec.targets, spec.train.seed)
    check_memory(sources.train, spec.train.batch_size // engine.ranks.size)
    model = build(spec, suite)
    with threads(spec.threads), working_in(folder, spec, engine) as metrics:
        if (done := finished(folder, spec, MODEL, OBJECTIVE)) is not None:  # someone else has been faster
            return done
        if engine.first:
            _refuse_other_images(folder, suite)

        def note(stats: TrainStats) -> None:
            metrics.add(stage="training", steps=spec.train.steps, **stats.row())
            if on_step is not None:
                on_step(stats)

        watch = {f"{target} {part}": data for target, parts in sources.targets.items() for part, data in parts.items()}
        dense = train(
            model,
            sources.train,
            spec.train,
            objective=objective,
            validation=sources.held_out,
            watch=watch,
            checkpoint=folder / STATE,
            on_step=note,
            engine=engine,
        )
        result = _result(spec, dense, sources, engine)
        if engine.first and not dense.interrupted:
            card = ModelCard(suite.classes, suite.pixels, suite.mean, suite.std, notes_of(spec, suite))
            save_dense(folder, model, dense.objective, tuple(sources.train), card)
            write_result(folder, result, SPEC, IMAGES, MODEL, OBJECTIVE)
    return as_read(result)


def _refuse_other_images(folder: Path, suite: Suite) -> None:
    """Training that goes on with other splits would have seen what is held out."""
    if (folder / STATE).exists() and (folder / IMAGES).exists():
        before, found = read_json(folder / IMAGES), listings(suite)
        if changed := [domain for domain in sorted({*before, *found}) if before.get(domain) != found.get(domain)]:
            what = f"images of {', '.join(changed)} were added, removed or renamed since {folder} began"
            raise DapError(f"{what}: restore them, or choose another folder")
    write_json(folder / IMAGES, listings(suite))


def build(spec: TrainSpec, suite: Suite) -> Classifier:
    """The model that training begins with."""
    options: dict[str, Any] = {}
    if not 0 <= spec.dropout < 1:
        raise DapError(f"dropout is {spec.dropout}; it must be at least 0 and below 1")
    if spec.backbone == "small_resnet":  # it takes images of any size, and has no such options
        if spec.dropout or spec.stride_in_1x1:
            raise DapError("small_resnet has neither dropout nor stride_in_1x1: leave them out")
    else:
        options = {"pixels": suite.pixels, "dropout": spec.dropout, "stride_in_1x1": spec.stride_in_1x1}
    with torch.random.fork_rng([]):
        torch.manual_seed(spec.train.seed)
        return create_classifier(spec.backbone, len(suite.classes), spec.weights, **options)


def _result(spec: TrainSpec, dense: Dense, sources: Sources, engine: Engine) -> dict[str, Any]:
    result = {
        "spec": asdict(spec),
        "steps": len(dense.losses),
        "interrupted": dense.interrupted,
        "selected": dense.selected,
        "score": None if dense.score is None else asdict(dense.score),
        "validation": [asdict(score) for score in dense.scores],
        "targets": {},
        # For the oracle, `evaluation.oracle`, and for curves. Nothing was selected by it.
        "watched, not selected by": dense.watched,
    }
    if not dense.interrupted:
        result |= on_targets(dense.model, sources, engine.ranks)
    return result
