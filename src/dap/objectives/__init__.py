"""Objectives: functions of the domains' outputs and labels that give one loss."""

from dap.objectives.coral import Coral
from dap.objectives.dann import Cdann, Dann
from dap.objectives.erm import Erm
from dap.objectives.group_dro import GroupDro
from dap.objectives.irm import Irm
from dap.objectives.miro import Miro
from dap.objectives.mixup import Mixup
from dap.objectives.mldg import Mldg
from dap.objectives.mmd import Mmd
from dap.objectives.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {
    "erm": Erm,
    "irm": Irm,
    "group_dro": GroupDro,
    "mixup": Mixup,
    "mldg": Mldg,
    "coral": Coral,
    "mmd": Mmd,
    "dann": Dann,
    "cdann": Cdann,
    "miro": Miro,
}

__all__ = [
    "OBJECTIVES",
    "Cdann",
    "Coral",
    "Dann",
    "Erm",
    "GroupDro",
    "Irm",
    "Miro",
    "Mixup",
    "Mldg",
    "Mmd",
    "Objective",
]
