"""The models of a run on all domains of its suite."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dap.dense import load_dense
from dap.engine import Engine
from dap.errors import DapError
from dap.evaluation import score
from dap.runs.folder import RESULT, as_read, finished, read_json, read_spec, threads, working_in, write_json
from dap.runs.opening import open_dense, place_of
from dap.runs.pruning import load_pruned
from dap.runs.sources import Sources, divide, suite_of
from dap.specs import EvaluateSpec, PruneSpec, TrainSpec

Told = Callable[[str, int, int], None]  # of a model that is done, its number, and how many there are


def evaluate_run(
    spec: EvaluateSpec, folder: str | Path, *, engine: Engine | None = None, on_step: Told | None = None
) -> dict[str, Any]:
    """Evaluate the models of a finished run, and write the result to `folder`."""
    engine, folder = engine or Engine(), Path(folder)
    if (done := finished(folder, spec)) is not None:
        return done
    run = place_of(spec.run, folder)
    model_names(run)  # refuses what is no finished run before the folder is ours
    with working_in(folder, spec, engine), threads(spec.threads):
        if (done := finished(folder, spec)) is not None:  # someone else has been faster
            return done
        models = evaluate(run, spec.sparsities, device=engine.device, on_step=on_step)
        result = {"spec": asdict(spec), "run": run.name, "models": models}
        write_json(folder / RESULT, result)
    return as_read(result)


def evaluate(
    run: str | Path,
    sparsities: Sequence[float | str] | None = None,
    dense: str | Path | None = None,
    device: torch.device | None = None,
    on_step: Told | None = None,
) -> dict[str, dict[str, Any]]:
    """Accuracy and loss of every model on the held-out images of every source and every part of every unseen domain.

    `sparsities` names some models of a pruning, as they were asked for; `dense` says where the dense training is now,
    if it was moved.
    """
    run, moved = Path(run), Path(dense) if dense else None
    names = model_names(run)
    wished = names if sparsities is None else list(map(str, sparsities))
    if unknown := [name for name in wished if name not in names]:
        raise DapError(f"{run} has no model {', '.join(unknown)}; it has {', '.join(names)}")
    sources, found = _sources(run, moved), {}
    for number, name in enumerate(wished, 1):
        model = load_dense(run)[0] if name == "dense" else load_pruned(run, name, dense)[0]
        found[name] = _scores(model.to(device), sources)
        if on_step is not None:
            on_step(name, number, len(wished))
    return found


def model_names(run: Path) -> list[str]:
    """Of the models of a finished run: `dense`, or the sparsities that were asked for."""
    spec = read_spec(run)
    if not isinstance(spec, TrainSpec | PruneSpec):
        raise DapError(f"{run} holds no model: give the folder of a dense training or of a pruning")
    if not (run / RESULT).is_file():
        raise DapError(f"{run} is not done: there is no {RESULT} in it")
    return ["dense"] if isinstance(spec, TrainSpec) else list(read_json(run / RESULT)["sparse"])


def _sources(run: Path, moved: Path | None) -> Sources:
    spec = read_spec(run)
    if isinstance(spec, PruneSpec):
        return open_dense(spec, run, moved).sources
    assert isinstance(spec, TrainSpec)
    return divide(suite_of(spec), spec.targets, spec.train.seed)


def _scores(model: nn.Module, sources: Sources) -> dict[str, Any]:
    found = {
        "sources": {domain: {"held out": score(model, data)._asdict()} for domain, data in sources.held_out.items()},
        "targets": {
            target: {part: score(model, data)._asdict() for part, data in parts.items()}
            for target, parts in sources.targets.items()
        },
    }
    rows = {
        domain: sum(part["accuracy"] * part["images"] for part in parts.values())
        / sum(part["images"] for part in parts.values())
        for side in found.values()
        for domain, parts in side.items()
    }
    worst = min(rows, key=lambda domain: rows[domain])
    return {**found, "worst": {"domain": worst, "accuracy": rows[worst]}}
