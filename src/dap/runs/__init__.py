"""A run: from a specification to a folder with its result."""

from dap.runs.choosing import choose_best
from dap.runs.evaluating import evaluate, evaluate_run
from dap.runs.folder import read_metrics, read_spec
from dap.runs.pruning import load_pruned, prune_dense
from dap.runs.sources import Sources, divide, on_targets
from dap.runs.training import make_objective, train_dense
from dap.specs.runs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, TrainSpec

__all__ = [
    "BestSpec",
    "EvaluateSpec",
    "ModelSpec",
    "PruneSpec",
    "Sources",
    "TrainSpec",
    "choose_best",
    "divide",
    "evaluate",
    "evaluate_run",
    "load_pruned",
    "make_objective",
    "on_targets",
    "prune_dense",
    "read_metrics",
    "read_spec",
    "train_dense",
]
