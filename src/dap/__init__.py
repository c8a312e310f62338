"""Domain-aware pruning: sparse networks that hold their accuracy on domains they have never seen."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dap import criteria, data, evaluation, objectives
    from dap.config import PruneConfig
    from dap.errors import DapError
    from dap.learning import MaskPath, Snapshot, learn_masks
    from dap.masking import bake
    from dap.masks import Masks
    from dap.pruner import Pruner, StepStats

__all__ = [
    "DapError",
    "MaskPath",
    "Masks",
    "PruneConfig",
    "Pruner",
    "Snapshot",
    "StepStats",
    "bake",
    "criteria",
    "data",
    "evaluation",
    "learn_masks",
    "objectives",
]

_HOME = {
    "DapError": "errors",
    "MaskPath": "learning",
    "Masks": "masks",
    "PruneConfig": "config",
    "Pruner": "pruner",
    "Snapshot": "learning",
    "StepStats": "pruner",
    "bake": "masking",
    "learn_masks": "learning",
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
