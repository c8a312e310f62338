"""Domain-aware pruning: sparse networks that hold their accuracy on domains they have never seen."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dap import allocation, criteria, data, dense, evaluation, models, objectives, selection
    from dap.config import PruneConfig, SwadConfig, TrainConfig
    from dap.engine import Engine, launch
    from dap.errors import DapError
    from dap.learning import MaskPath, Snapshot, learn_masks
    from dap.masking import bake
    from dap.masks import Masks
    from dap.models import Classifier
    from dap.pruner import Pruner, StepStats
    from dap.pruning import Pruned, prune
    from dap.trainer import Trainer
    from dap.training import Dense, finetune, train

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
    "Engine": "engine",
    "MaskPath": "learning",
    "Masks": "masks",
    "PruneConfig": "config",
    "Pruned": "pruning",
    "Pruner": "pruner",
    "Snapshot": "learning",
    "StepStats": "pruner",
    "SwadConfig": "config",
    "TrainConfig": "config",
    "Trainer": "trainer",
    "bake": "masking",
    "finetune": "training",
    "launch": "engine",
    "learn_masks": "learning",
    "prune": "pruning",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    # Nothing heavy is imported until it is used.
    if name in _HOME:
        return getattr(import_module(f"dap.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"dap.{name}")
    raise AttributeError(f"module 'dap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
