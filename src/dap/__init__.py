"""Domain-aware pruning: sparse networks that hold their accuracy on domains they have never seen."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dap import criteria, data, evaluation, models, objectives
    from dap.config import PruneConfig, SwadConfig, TrainConfig
    from dap.criteria.prune import Pruned, prune
    from dap.errors import DapError
    from dap.masks import allocation
    from dap.masks.attach import bake
    from dap.masks.masks import Masks
    from dap.method.learn import MaskPath, Snapshot, learn_masks
    from dap.method.step import Pruner, StepStats
    from dap.models import Classifier
    from dap.runs import dense
    from dap.runtime.engine import Engine, launch
    from dap.training import selection
    from dap.training.loop import Dense, finetune, train
    from dap.training.step import Trainer

__all__ = [
    "Classifier",
    "DapError",
    "Dense",
    "Engine",
    "MaskPath",
    "Masks",
    "PruneConfig",
    "Pruned",
    "Pruner",
    "Snapshot",
    "StepStats",
    "SwadConfig",
    "TrainConfig",
    "Trainer",
    "allocation",
    "bake",
    "criteria",
    "data",
    "dense",
    "evaluation",
    "finetune",
    "launch",
    "learn_masks",
    "models",
    "objectives",
    "prune",
    "selection",
    "train",
]

_HOME = {
    "Classifier": "models",
    "DapError": "errors",
    "Dense": "training",
    "Engine": "runtime.engine",
    "MaskPath": "method.learn",
    "Masks": "masks",
    "PruneConfig": "config",
    "Pruned": "criteria.prune",
    "Pruner": "method.step",
    "Snapshot": "method.learn",
    "StepStats": "method.step",
    "SwadConfig": "config",
    "TrainConfig": "config",
    "Trainer": "training",
    "bake": "masks",
    "finetune": "training",
    "launch": "runtime.engine",
    "learn_masks": "method.learn",
    "prune": "criteria.prune",
    "train": "training",
}
_MODULES = {"allocation": "masks.allocation", "dense": "runs.dense", "selection": "training.selection"}


def __getattr__(name: str) -> Any:
    # Nothing heavy is imported until it is used.
    if name in _HOME:
        return getattr(import_module(f"dap.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"dap.{_MODULES.get(name, name)}")
    raise AttributeError(f"module 'dap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
