"""The numbers of finished runs as flat records, labelled by what distinguishes the runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.errors import DapError
from dap.methods import METHODS
from dap.runs.folder import RESULT, SPEC, read_json, read_spec
from dap.runs.opening import place_of
from dap.specs import ModelSpec, PruneSpec, TrainSpec

# A trial of one and the same thing: these do not tell rows of a table apart.
_TRIAL = {"seed", "targets", "threads"}


@dataclass(frozen=True)
class Record:
    """One model: dense, or at one sparsity."""

    run: str  # the folder's name
    method: str  # its title; "Dense"
    options: Mapping[str, Any]  # those of the run, by their path; without what makes a trial
    suite: str
    targets: tuple[str, ...]
    seed: int
    wished: str | None  # the sparsity that was asked for, or the pattern; None: dense
    sparsity: float
    validation: float  # the mean accuracy over the sources' held-out images
    unseen: float | None  # the mean accuracy over the unseen domains; None where there are none


def read_records(folder: str | Path) -> list[Record]:
    """Of every finished training and pruning in `folder`, a study's or one run's own."""
    folder = Path(folder)
    places = [folder] if (folder / SPEC).is_file() else sorted(path.parent for path in folder.glob(f"*/{SPEC}"))
    if not places:
        raise DapError(f"there are no runs in {folder}: give the folder of a study or of a run")
    return [record for place in places if (place / RESULT).is_file() for record in _records(place)]


def _records(run: Path) -> Iterator[Record]:
    spec = read_spec(run)
    result = read_json(run / RESULT)
    if isinstance(spec, TrainSpec):
        yield _record(run, "Dense", spec, spec, None, {**result, "validation": result["score"]["accuracy"]})
    elif isinstance(spec, PruneSpec):
        dense = spec.dense
        if isinstance(dense, str) or not isinstance(dense, TrainSpec | ModelSpec):
            dense = read_spec(place_of(dense, run))
        assert isinstance(dense, TrainSpec | ModelSpec)
        for wished, row in result["sparse"].items():
            yield _record(run, METHODS[spec.method].title, spec, dense, wished, row)


def _record(
    run: Path,
    method: str,
    spec: TrainSpec | PruneSpec,
    dense: TrainSpec | ModelSpec,
    wished: str | None,
    row: Mapping[str, Any],
) -> Record:
    options = {"dense": dense.canonical()} if spec is dense else {**spec.canonical(), "dense": dense.canonical()}
    unseen = [scores["all"] for scores in row["targets"].values()]
    return Record(
        run.name,
        method,
        dict(_flat({name: value for name, value in options.items() if name not in ("method", "sparsities")})),
        dense.suite,
        dense.targets,
        dense.train.seed,
        wished,
        row.get("sparsity", 0.0),
        fmean(row["validation"].values()),
        fmean(unseen) if unseen else None,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in _TRIAL:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value
