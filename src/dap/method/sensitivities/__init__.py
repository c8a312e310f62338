"""Measures of how much domains disagree about a gate, one file each. `docs/sensitivities.md` shows how to add one."""

from dap.errors import DapError
from dap.method.sensitivities.sensitivity import Cost, Sensitivity
from dap.method.sensitivities.sign import SignAgreement

SENSITIVITIES: dict[str, type[Sensitivity]] = {"sign": SignAgreement}


def find_sensitivity(name: str) -> type[Sensitivity]:
    """The measure of this name.

    >>> find_sensitivity("sign").range
    (-1.0, 1.0)
    """
    if name not in SENSITIVITIES:
        raise DapError(f"there is no sensitivity {name!r}; choose one of {', '.join(SENSITIVITIES)}")
    return SENSITIVITIES[name]


__all__ = ["SENSITIVITIES", "Cost", "Sensitivity", "SignAgreement", "find_sensitivity"]
