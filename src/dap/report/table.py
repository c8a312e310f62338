"""Methods against sparsities: the mean over unseen domains, and its mean and spread over seeds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from dap.errors import DapError
from dap.methods import METHODS
from dap.report.records import Record

Side = Literal["unseen", "validation"]


@dataclass(frozen=True)
class Cell:
    mean: float
    spread: float | None  # the standard deviation over seeds; None of one seed
    seeds: int
    missing: int = 0  # seeds that lack an unseen domain, and are left out

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if self.spread is None else f" ± {100 * self.spread:.1f}")


@dataclass(frozen=True)
class Table:
    side: Side
    targets: tuple[tuple[str, ...], ...]  # the unseen domains
    columns: tuple[str, ...]  # sparsities that were asked for, and patterns
    rows: dict[str, dict[str, Cell | None]]  # by title and column; None: there is nothing, or nothing whole

    def markdown(self) -> str:
        lines = ["| | " + " | ".join(map(_heading, self.columns)) + " |", "|---" * (1 + len(self.columns)) + "|"]
        for title, cells in self.rows.items():
            lines.append(f"| {title} | " + " | ".join(str(cells[column] or "–") for column in self.columns) + " |")
        return "\n".join(lines)


def make_table(records: Sequence[Record], side: Side = "unseen") -> Table:
    """A seed counts where it has every unseen domain that any run has on the suite; options that differ name rows."""
    if not records:
        raise DapError("no run is finished yet: there is nothing to show")
    if side == "unseen" and any(record.unseen is None for record in records):
        raise DapError("there are no unseen domains: show the sources' validation")
    differing = _differing(records)
    groups: dict[tuple[str, str], dict[int, dict[tuple[str, ...], float]]] = defaultdict(lambda: defaultdict(dict))
    columns: dict[str, None] = {}
    order = ["Dense", *(method.title for method in METHODS.values())]
    for record in sorted(records, key=lambda record: (order.index(record.method), record.wished or "")):
        column = record.wished or "dense"
        columns[column] = None
        value = record.unseen if side == "unseen" else record.validation
        assert value is not None
        groups[_title(record, differing), column][record.seed][record.targets] = value
    # Every unseen domain of the suite: what a row lacks is missing, not left out of its mean.
    suites: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for record in records:
        suites[record.suite].add(record.targets)
    expected = {_title(record, differing): suites[record.suite] for record in records}
    titles = dict.fromkeys(title for title, _ in groups)
    rows = {
        title: {column: _cell(groups.get((title, column), {}), expected[title]) for column in columns}
        for title in titles
    }
    targets = tuple(sorted({record.targets for record in records}))
    return Table(side, targets, tuple(sorted(columns, key=lambda column: (column != "dense", column))), rows)


def _cell(seeds: dict[int, dict[tuple[str, ...], float]], targets: set[tuple[str, ...]]) -> Cell | None:
    means = [fmean(found.values()) for found in seeds.values() if set(found) == targets]
    if not means:
        return None
    return Cell(fmean(means), stdev(means) if len(means) > 1 else None, len(means), len(seeds) - len(means))


def _differing(records: Sequence[Record]) -> dict[str, list[str]]:
    """By method, the options that tell its rows apart."""
    by_method: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_method[record.method].append(record)
    return {
        method: [
            name
            for name in dict.fromkeys(name for record in found for name in record.options)
            if len({repr(record.options.get(name)) for record in found}) > 1
        ]
        for method, found in by_method.items()
    }


def _title(record: Record, differing: dict[str, list[str]]) -> str:
    names = differing[record.method]
    shown = ", ".join(f"{_short(name)} {record.options.get(name)}" for name in names)
    return f"{record.method} ({shown})" if shown else record.method


def _short(name: str) -> str:
    """`dense.train.learning_rate` is the dense model's, `prune.alpha` mask learning's."""
    return name.removeprefix("dense.").removeprefix("train.").removeprefix("prune.").replace("_", " ")


def _heading(column: str) -> str:
    return f"{float(column):.0%}" if column.replace(".", "", 1).isdigit() else column
