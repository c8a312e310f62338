"""Criteria: a score for every maskable weight of a model; the higher, the sooner it is kept."""

from pkgutil import resolve_name

from dap.criteria.calibration import Calibration, Criterion, News, Scores
from dap.criteria.control import control
from dap.criteria.dss import dss
from dap.criteria.ior import ior
from dap.criteria.learned import agnostic, dap
from dap.criteria.magnitude import magnitude
from dap.criteria.movement import movement
from dap.criteria.random import random
from dap.criteria.taylor import taylor
from dap.criteria.wanda import wanda
from dap.specs.methods import METHODS

CRITERIA: dict[str, Criterion] = {name: resolve_name(method.criterion) for name, method in METHODS.items()}

__all__ = [
    "CRITERIA",
    "Calibration",
    "Criterion",
    "News",
    "Scores",
    "agnostic",
    "control",
    "dap",
    "dss",
    "ior",
    "magnitude",
    "movement",
    "random",
    "taylor",
    "wanda",
]
