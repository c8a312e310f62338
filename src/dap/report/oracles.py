"""What choosing dense models by the unseen domain itself would have given: a yardstick beside what was chosen."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.evaluation import TargetScore, oracle
from dap.report.records import Record
from dap.report.series import DENSE
from dap.report.statistics import mean_of, over_domains
from dap.report.table import Column, Row, Table
from dap.specs.file_names import RESULT
from dap.specs.run_files import intact, read_result, read_spec
from dap.specs.runs import BestSpec, folder_name

_NOTE = (
    "Dense models, on 80 % of the images of the unseen domains; the mean over domains, ± the standard deviation over "
    "seeds. Chosen: by the sources alone, as everywhere else in this report. Oracle: by the other 20 % of the unseen "
    "domain, which nobody has who ships a model; of last checkpoints, as in DomainBed. Nothing was selected by it."
)


@dataclass(frozen=True)
class Oracle:
    """Of one trial, on the 80 % of its unseen domains."""

    record: Record
    chosen: float  # by the sources
    oracle: float


def read_oracles(folder: str | Path, records: Sequence[Record]) -> Iterator[Oracle]:
    """Of every dense training, or search, whose own result is here."""
    folder = Path(folder)
    for record in records:
        place = folder if record.run == folder.name else folder / record.run
        if record.method != DENSE or record.pruning or not (place / RESULT).is_file():
            continue
        spec = read_spec(place)
        names = [folder_name(one) for one in spec.candidates] if isinstance(spec, BestSpec) else [place.name]
        trials = [_watched(place.parent / name, record.targets) for name in names]
        with intact(place / RESULT):
            chosen = read_result(place)
            if isinstance(spec, BestSpec):
                chosen = read_result(place.parent / chosen["chosen"])
            if record.targets and all(trials):
                selected = fmean(scores["80 %"] for scores in chosen["targets"].values())
                yield Oracle(record, selected, oracle(trials).rest)


def _watched(run: Path, targets: Sequence[str]) -> list[TargetScore]:
    """Of every checkpoint that a training looked at."""

    def mean(found: Mapping[str, Any], part: str) -> float:
        return fmean(found[f"{target} {part}"] for target in targets)

    with intact(run / RESULT):
        watched = read_result(run)["watched, not selected by"]
        return [TargetScore(int(step), mean(found, "20 %"), mean(found, "80 %")) for step, found in watched.items()]


def oracle_table(oracles: Sequence[Oracle]) -> Table | None:
    """By series and suite."""
    rows: dict[tuple[str, str], dict[str, dict[int, dict[tuple[str, ...], float]]]] = {}
    every: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for one in oracles:
        trial = one.record
        row = rows.setdefault((trial.suite, trial.series), {"chosen": {}, "oracle": {}})
        for kind, value in {"chosen": one.chosen, "oracle": one.oracle}.items():
            row[kind].setdefault(trial.seed, {})[trial.targets] = value
        every[trial.suite] |= {trial.targets, *trial.expected}
    cells = [
        Row(
            (suite, series, *(mean_of([*over_domains(seeds, every[suite]).values()]) for seeds in row.values())), series
        )
        for (suite, series), row in rows.items()
    ]
    columns = (Column("suite"), Column("method"), Column("chosen by the sources"), Column("oracle"))
    return Table("oracle", "If the unseen domain had chosen", _NOTE, columns, tuple(cells)) if cells else None
