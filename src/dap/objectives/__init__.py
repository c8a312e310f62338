"""Objectives: functions of the domains' outputs and labels that give one loss."""

from dap.objectives.erm import Erm
from dap.objectives.objective import Objective

OBJECTIVES = {"erm": Erm}

__all__ = ["OBJECTIVES", "Erm", "Objective"]
