"""Criteria: a score for every maskable weight of a model; the higher, the sooner it is kept."""

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

CRITERIA: dict[str, Criterion] = {
    "control": control,
    "random": random,
    "magnitude": magnitude,
    "taylor": taylor,
    "wanda": wanda,
    "movement": movement,
    "dap": dap,
    "agnostic": agnostic,
    "ior": ior,
    "dss": dss,
}

# Their scores are those of whole output channels.
CHANNEL_LEVEL = {"ior", "dss"}

__all__ = [
    "CHANNEL_LEVEL",
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
