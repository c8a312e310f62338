"""The attacks that `dap evaluate` knows, as plain data. Imports no torch.

A new attack is a class in a file of `dap.evaluation` and a line in `ATTACKS`: see docs/robustness.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dap.errors import DapError

EPSILONS = tuple(value / 255 for value in (0.5, 1, 2, 4, 8))  # by severity, 1 to 5
OPTIONS = ("restarts", "random_start", "seed")  # of `EvaluateSpec`, that an attack may take


@dataclass(frozen=True)
class AttackEntry:
    """What specifications, estimates, reports and the help know about an attack."""

    code: str  # package.module:Class of a `dap.evaluation.attacks.Attack`, called with ε and the options
    passes: int  # forward passes per image, summed over all severities; a gradient counts as three
    options: tuple[str, ...] = ()  # those of `OPTIONS` that it takes
    by_severity: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # further options, a value per severity
    apart: str | None = None  # its title, if it is slow and sees fewer images: reports then show it in its own table

    @property
    def table(self) -> str:
        """The name of the table and the figure of a report that show it."""
        return "attacks" if self.apart is None else self.apart.lower()


ATTACKS: dict[str, AttackEntry] = {
    "fgsm": AttackEntry("dap.evaluation.fgsm:FGSM", 5 * 8),
    "pgd": AttackEntry("dap.evaluation.pgd:PGD", 40 * 3 + 5 * 8, OPTIONS, {"steps": (5, 5, 10, 10, 10)}),
    "auto": AttackEntry("dap.evaluation.autoattack:AutoAttack", 5 * 7000, ("seed",), apart="AutoAttack"),
}


def attack_named(name: str) -> AttackEntry:
    if name not in ATTACKS:
        raise DapError(f"there is no attack {name!r}; choose one of {', '.join(ATTACKS)}")
    return ATTACKS[name]


def attack_tables() -> dict[str, str]:
    """By the name of a report's table, what its models are under.

    >>> attack_tables()
    {'attacks': 'attack', 'autoattack': 'AutoAttack'}
    """
    return {entry.table: entry.apart or "attack" for entry in ATTACKS.values()}


def shown_in(table: str) -> dict[str, AttackEntry]:
    """The attacks that a report's table shows.

    >>> list(shown_in("attacks"))
    ['fgsm', 'pgd']
    """
    return {name: entry for name, entry in ATTACKS.items() if entry.table == table}


def taking(option: str) -> list[str]:
    """The attacks that take an option.

    >>> taking("seed")
    ['pgd', 'auto']
    """
    return [name for name, entry in ATTACKS.items() if option in entry.options]
