"""How far masks agree: between methods, between seeds, between unseen domains."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from dap.evaluation.interpretation import chance_overlap
from dap.masks.masks import Masks
from dap.report.records import Record
from dap.report.statistics import mean_of
from dap.report.table import Column, Row, Table, sparsity_title
from dap.report.tables import in_order
from dap.specs.file_names import MASKS, folder_of

BETWEEN = {"series": "methods", "seed": "seeds", "targets": "unseen domains"}


@dataclass(frozen=True)
class Overlap:
    """Of the weights that either of two models keeps, the share that both keep."""

    between: str  # what alone tells the two apart
    one: Record
    other: Record
    overlap: float
    by_chance: float

    def row(self) -> dict[str, str | float | int]:
        row: dict[str, str | float | int] = {"between": self.between, "wished": self.one.wished or ""}
        for name, model in {"one": self.one, "other": self.other}.items():
            row |= {name: model.run, f"{name}_method": model.series, f"{name}_seed": model.seed}
            row[f"{name}_unseen"] = "+".join(model.targets)
        return row | {"overlap": self.overlap, "by_chance": self.by_chance}


def read_overlaps(folder: str | Path, records: Sequence[Record], only: str | None = None) -> list[Overlap]:
    """Of every two masks of one sparsity that differ in method, seed or unseen domain alone; `only` with this run's."""
    folder = Path(folder)

    @cache
    def masks(run: str, wished: str) -> Masks | None:
        name, _, inner = run.partition("/")
        file = folder_of((folder if name == folder.name else folder / name) / inner, wished) / MASKS
        return Masks.load(file) if file.is_file() else None

    found = []
    for one, other in combinations(in_order(record for record in records if record.wished), 2):
        between = _between(one, other)
        if between is None or (only is not None and only not in (one.run, other.run)):
            continue
        assert one.wished is not None
        first, second = masks(one.run, one.wished), masks(other.run, one.wished)
        if first is None or second is None or not _alike(first, second):
            continue
        found.append(Overlap(between, one, other, first.overlap(second), chance_overlap(first, second)))
    return found


def _between(one: Record, other: Record) -> str | None:
    if (one.suite, one.wished) != (other.suite, other.wished):
        return None
    differing = [title for name, title in BETWEEN.items() if getattr(one, name) != getattr(other, name)]
    return differing[0] if len(differing) == 1 else None


def _alike(one: Masks, other: Masks) -> bool:
    """Of one network."""
    return {name: mask.shape for name, mask in one.items()} == {name: mask.shape for name, mask in other.items()}


def overlap_table(overlaps: Sequence[Overlap]) -> Table | None:
    """Means over pairs."""
    groups: dict[tuple[str, str, str], list[Overlap]] = defaultdict(list)
    for one in overlaps:
        names = " / ".join(dict.fromkeys((one.one.series, one.other.series)))
        groups[one.between, names, one.one.wished or ""].append(one)
    rows = []
    for (between, names, wished), found in sorted(groups.items()):
        shares = mean_of([one.overlap for one in found]), mean_of([one.by_chance for one in found])
        rows.append(Row((between, names, sparsity_title(wished), *shares, str(len(found))), wished=wished))
    columns = tuple(Column(title) for title in ("between", "method", "sparsity", "overlap", "by chance", "pairs"))
    note = "Of the weights that either keeps, the share in % that both keep; ± is the standard deviation over pairs."
    return Table("overlaps", "How far masks agree", note, columns, tuple(rows)) if rows else None
