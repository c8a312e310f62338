"""The model of a run on all domains of its suite."""

from pathlib import Path
from typing import Any

from torch import nn

from dap.data import load_suite
from dap.dense import load_dense
from dap.errors import DapError
from dap.evaluation import score
from dap.runs.folder import read_spec
from dap.runs.opening import open_dense
from dap.runs.pruning import load_pruned
from dap.runs.sources import Sources, divide
from dap.specs import PruneSpec, TrainSpec


def evaluate(run: str | Path, wished: str | float | None = None, dense: str | Path | None = None) -> dict[str, Any]:
    """Accuracy and loss on the held-out images of every source and on every part of every unseen domain."""
    model, sources = _model(Path(run), wished, dense)
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
    return {"run": str(run), "wished": wished, **found, "worst": {"domain": worst, "accuracy": rows[worst]}}


def _model(run: Path, wished: str | float | None, dense: str | Path | None) -> tuple[nn.Module, Sources]:
    spec = read_spec(run)
    if isinstance(spec, TrainSpec):
        if wished is not None:
            raise DapError(f"{run} is a dense training: leave the sparsity out")
        suite = load_suite(spec.suite, spec.root, spec.pixels, on_corrupt=spec.on_corrupt)
        return load_dense(run)[0], divide(suite, spec.targets, spec.train.seed)
    if not isinstance(spec, PruneSpec):
        raise DapError(f"{run} holds no model: give the folder of a dense training or of a pruning")
    if wished is None:
        raise DapError(f"{run} is a pruning: say which sparsity")
    sources = open_dense(spec, run, Path(dense) if dense else None).sources
    return load_pruned(run, wished, dense)[0], sources
