"""A run: from a specification to a folder with its result."""

from dap.runs.pruning import PruneSpec, load_pruned, prune_dense
from dap.runs.sources import Sources, divide, on_targets
from dap.runs.training import TrainSpec, make_objective, train_dense

__all__ = [
    "PruneSpec",
    "Sources",
    "TrainSpec",
    "divide",
    "load_pruned",
    "make_objective",
    "on_targets",
    "prune_dense",
    "train_dense",
]
