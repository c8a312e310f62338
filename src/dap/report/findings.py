"""What evaluations found beside accuracy: attacks, corruptions, logits and layers; and curves over the steps."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.report.records import Record, run_places
from dap.report.series import DENSE
from dap.runs.folder import RESULT, SPEC, intact, read_json, read_spec
from dap.runs.opening import place_of
from dap.specs import EvaluateSpec, PruneSpec, TrainSpec, folder_name

EVALUATION = "evaluation"  # how the folders begin where `dap evaluate` leaves its result in a run's folder


@dataclass(frozen=True)
class Finding:
    """The accuracy of a model in one case: the mean over source domains, or over unseen ones."""

    kind: str  # attacks, corruptions
    case: str  # which one
    severity: str  # "" for the mean over all
    unseen: bool
    accuracy: float
    suite: str
    targets: tuple[str, ...]
    seed: int
    series: str
    dense: str
    wished: str | None
    images: int | None = None  # of each domain at most; None: all


@dataclass(frozen=True)
class Histogram:
    """Of the logits that mask learning ended with."""

    run: str
    record: Record
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """Of a curve: a model on its way."""

    suite: str
    series: str
    targets: tuple[str, ...]
    seed: int
    step: int
    sparsity: float
    unseen: float
    validation: float


@dataclass(frozen=True)
class Findings:
    robustness: list[Finding]
    histograms: list[Histogram]
    points: list[Point]


def read_findings(folder: str | Path, records: Sequence[Record]) -> Findings:
    """Of every evaluation beside the runs of `records`, and of their logs."""
    folder = Path(folder)
    models = {(record.run, record.wished): record for record in records}
    found = Findings([], [], [])
    places = run_places(folder)
    evaluations: dict[tuple[Any, ...], list[tuple[Path, str]]] = defaultdict(list)
    for place in [*places, *(own for run in places for own in sorted(run.glob(f"{EVALUATION}*")))]:
        if (place / SPEC).is_file() and (place / RESULT).is_file():
            spec = read_spec(place)
            if isinstance(spec, EvaluateSpec):
                run = place_of(spec.run, place).name if isinstance(spec.run, str) else folder_name(spec.run)
                settings = (spec.images, spec.restarts, spec.random_start, spec.seed)
                evaluations[settings].append((place, run))
    if evaluations:  # only what was measured alike is compared: of several settings the one that most have
        settings = max(evaluations, key=lambda one: (len(evaluations[one]), one[0] is None, one[0] or 0))
        for place, run in evaluations[settings]:
            with intact(place / RESULT):
                _read_evaluation(found, run, read_json(place / RESULT), models, settings[0])
    by_run = {record.run: record for record in records}
    for place in places:
        if place.name in by_run and (place / RESULT).is_file():
            with intact(place / RESULT):
                found.points.extend(_points(place, by_run[place.name]))
    return found


def _read_evaluation(
    found: Findings,
    run: str,
    result: Mapping[str, Any],
    models: Mapping[tuple[str, str | None], Record],
    images: int | None,
) -> None:
    ours = [record for (name, _), record in models.items() if name == run]
    sparse = [record for record in ours if record.wished]
    for name, row in result["models"].items():
        record = models.get((run, name))
        if record is None and ours and name == "dense":  # of a training, or that of a pruning
            record = next((one for one in models.values() if _is_dense_of(one, ours[0])), None)
        elif record is None:
            record = next((one for one in ours if one.wished is None and one.method != DENSE), None)  # the control
        if record is not None:
            found.robustness.extend(_robustness(record, row, images))
    if sparse and "logits" in result.get("interpretation", {}):
        found.histograms.append(Histogram(run, sparse[0], result["interpretation"]["logits"]))


def _is_dense_of(dense: Record, model: Record) -> bool:
    ours = (model.dense, model.suite, model.targets, model.seed)
    return (dense.series, dense.suite, dense.targets, dense.seed) == ours


def _robustness(record: Record, row: Mapping[str, Any], images: int | None) -> Iterator[Finding]:
    def finding(kind: str, case: str, severity: str, unseen: bool, accuracies: Sequence[float]) -> Finding:
        about = (record.suite, record.targets, record.seed, record.series, record.dense, record.wished, images)
        if not all(map(isfinite, accuracies)):
            raise ValueError("an accuracy is not a number")
        return Finding(kind, case, severity, unseen, fmean(accuracies), *about)

    sides = {unseen: list(row["targets" if unseen else "sources"]) for unseen in (False, True)}
    for unseen, domains in sides.items():
        if not domains:
            continue
        for number, (attack, severities) in enumerate(row.get("attacks", {}).items()):
            if number == 0:
                clean = next(iter(severities.values()))
                yield finding("attacks", "clean", "0", unseen, [clean[domain]["clean"] for domain in domains])
            for severity, found in severities.items():
                yield finding("attacks", attack, severity, unseen, [found[domain]["accuracy"] for domain in domains])
        if corrupted := row.get("corruptions"):
            yield finding("corruptions", "clean", "", unseen, [corrupted[domain]["clean"] for domain in domains])
            for case in corrupted[domains[0]]["accuracy"]:
                values = [fmean(corrupted[domain]["accuracy"][case].values()) for domain in domains]
                yield finding("corruptions", case, "", unseen, values)
            yield finding("corruptions", "mean", "", unseen, [corrupted[domain]["mean"] for domain in domains])


def _points(run: Path, record: Record) -> Iterator[Point]:
    spec = read_spec(run)
    about = (record.suite, record.series, record.targets, record.seed)
    if isinstance(spec, TrainSpec):
        result = read_json(run / RESULT)
        validation = {score["step"]: fmean(score["accuracy"].values()) for score in result["validation"]}
        for step, watched in result["watched, not selected by"].items():
            if int(step) in validation:
                yield Point(*about, int(step), 0.0, _over_parts(watched, record.targets), validation[int(step)])
    elif isinstance(spec, PruneSpec) and spec.watch_every is not None:
        for row in read_json(run / RESULT).get("curve", []):
            watched, validation = fmean(row["watched"].values()), fmean(row["validation"].values())
            yield Point(*about, row["step"], row["sparsity"], watched, validation)


def _over_parts(watched: Mapping[str, float], targets: Sequence[str]) -> float:
    """The two parts of an unseen domain, of 80 % and 20 %, as one."""
    return fmean(0.8 * watched[f"{target} 80 %"] + 0.2 * watched[f"{target} 20 %"] for target in targets)
