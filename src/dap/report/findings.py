"""What evaluations found beside accuracy: attacks, corruptions, logits and layers; and curves over the steps."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.report.records import Record, run_places, study_runs
from dap.runs.evaluating import content_of
from dap.runs.folder import read_metrics
from dap.runs.opening import place_of
from dap.specs.attacks import OPTIONS, attack_tables, shown_in
from dap.specs.file_names import METRICS, RESULT, SPEC
from dap.specs.run_files import Damaged, intact, read_result, read_spec
from dap.specs.runs import BestSpec, EvaluateSpec, PruneSpec, TrainSpec, folder_name

EVALUATION = "evaluation"  # how the folders begin where `dap evaluate` leaves its result in a run's folder


@dataclass(frozen=True)
class Finding:
    """The accuracy of a model in one case: the mean over source domains, or over unseen ones."""

    kind: str  # corruptions, or one of `attack_tables`
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
    images: str = ""  # how many of them
    expected: tuple[tuple[str, ...], ...] = ()  # as in `Record`, of evaluations of this kind
    right: Mapping[str, str] = field(default_factory=dict)  # by domain, which images: see `dap.evaluation.bits`


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
    expected: tuple[tuple[str, ...], ...] = ()  # see `Record`


@dataclass(frozen=True)
class Findings:
    robustness: list[Finding]
    histograms: list[Histogram]
    points: list[Point]


def read_findings(folder: str | Path, records: Sequence[Record]) -> Findings:
    """Of every evaluation beside the runs of `records`, and of their logs."""
    folder = Path(folder)
    places = run_places(folder)
    evaluations: list[_Evaluation] = []
    inside = {own: run for run in places for own in sorted(run.glob(f"{EVALUATION}*"))}  # of that run, whatever it says
    for place in [*places, *inside]:
        if (place / SPEC).is_file() and (place / RESULT).is_file():
            spec = read_spec(place)
            if isinstance(spec, EvaluateSpec):
                said = place_of(spec.run, place).name if isinstance(spec.run, str) else folder_name(spec.run)
                evaluations.append(_Evaluation(place, inside[place].name if place in inside else said, spec))
                _refuse_another_run(evaluations[-1], inside.get(place, place.parent / said))
    found = Findings([], [], [])
    studied = list(study_runs(folder))
    for kind, settings in SETTINGS.items():
        asked = {dense.targets for spec, dense in studied if isinstance(spec, EvaluateSpec) and settings(spec)}
        for one in _alike(evaluations, kind):
            with intact(one.place / RESULT):
                found.robustness.extend(_robustness(one, kind, records, asked))
    for one in evaluations:
        pruned = next((record for record in records if record.run == one.run and record.wished), None)
        with intact(one.place / RESULT):
            if pruned and (logits := one.result.get("interpretation", {}).get("logits")):
                found.histograms.append(Histogram(one.run, pruned, logits))
    by_run = {record.run: record for record in records}
    for place in places:
        if place.name in by_run and (place / RESULT).is_file():
            with intact(place / RESULT):
                found.points.extend(_points(place, by_run[place.name]))
    return found


def _attack_settings(table: str, spec: EvaluateSpec) -> tuple[Any, ...]:
    attacks = shown_in(table)
    options = [option for option in OPTIONS if any(option in attack.options for attack in attacks.values())]
    values = (spec.images, spec.per_side, *(getattr(spec, option) for option in options))
    return values if attacks.keys() & set(spec.attacks) else ()


# What numbers of a kind depend on beside the model; nothing where an evaluation has none.
SETTINGS: dict[str, Callable[[EvaluateSpec], tuple[Any, ...]]] = {
    **{table: partial(_attack_settings, table) for table in attack_tables()},
    "corruptions": lambda spec: (spec.images, spec.per_side) if spec.corruptions else (),
}


@dataclass(frozen=True)
class _Evaluation:
    place: Path
    run: str
    spec: EvaluateSpec

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_result(self.place)


def _refuse_another_run(one: _Evaluation, run: Path) -> None:
    """An evaluation is shown beside the run that it is about, and no other."""
    if isinstance(one.spec.run, BestSpec):
        run = place_of(one.spec.run, one.place)
    if (run / RESULT).is_file() and one.result.get("content", "") != content_of(run):
        raise Damaged(one.place / RESULT, f"it is about a run that was in {run} before")


def _alike(evaluations: Sequence[_Evaluation], kind: str) -> list[_Evaluation]:
    """Only what was measured alike is compared: of several settings the one that most have."""
    groups: dict[tuple[Any, ...], list[_Evaluation]] = defaultdict(list)
    for one in evaluations:
        if settings := SETTINGS[kind](one.spec):
            groups[settings].append(one)
    return max(groups.values(), key=lambda group: (len(group), group[0].spec.images or inf), default=[])


def _robustness(
    one: _Evaluation, kind: str, records: Sequence[Record], asked: Collection[tuple[str, ...]]
) -> Iterator[Finding]:
    ours = [record for record in records if record.run == one.run]
    for name, row in one.result["models"].items():
        if name == "dense":  # of a training, or that of a pruning
            record = next((dense for dense in records if ours and _is_dense_of(dense, ours[0])), None)
        else:
            known = (record for record in ours if record.series != record.dense)
            record = next((record for record in known if record.wished in (name, None)), None)  # None: the control
        if record is not None:
            expected = tuple(targets for targets in record.expected if targets in asked)
            yield from _of_kind(kind, replace(record, expected=expected), row, _how_many(one.spec))


def _is_dense_of(dense: Record, model: Record) -> bool:
    ours = (model.dense, model.suite, model.targets, model.seed)
    return (dense.series, dense.suite, dense.targets, dense.seed) == ours


def _how_many(spec: EvaluateSpec) -> str:
    count = "All images" if spec.images is None else f"At most {spec.images} images"
    return f"{count} of each {'side' if spec.per_side and spec.images else 'domain'}."


def _of_kind(kind: str, record: Record, row: Mapping[str, Any], images: str) -> Iterator[Finding]:
    def finding(
        case: str, severity: str, unseen: bool, accuracies: Sequence[float], right: Mapping[str, str] | None = None
    ) -> Finding:
        trial = (record.suite, record.targets, record.seed)
        about = (*trial, record.series, record.dense, record.wished, images, record.expected, right or {})
        if not all(map(isfinite, accuracies)):
            raise ValueError("an accuracy is not a number")
        return Finding(kind, case, severity, unseen, fmean(accuracies), *about)

    sides = {unseen: list(row["targets" if unseen else "sources"]) for unseen in (False, True)}
    for unseen, domains in sides.items():
        if not domains:
            continue
        of_kind = shown_in(kind)
        attacks = {name: severities for name, severities in row.get("attacks", {}).items() if name in of_kind}
        for number, (attack, severities) in enumerate(attacks.items()):
            if number == 0:
                clean = next(iter(severities.values()))
                yield finding("clean", "0", unseen, [clean[domain]["clean"] for domain in domains])
            for severity, found in severities.items():
                right = {domain: found[domain]["right"] for domain in domains if found[domain].get("right")}
                yield finding(attack, severity, unseen, [found[domain]["accuracy"] for domain in domains], right)
        if kind == "corruptions" and (corrupted := row.get("corruptions")):
            yield finding("clean", "", unseen, [corrupted[domain]["clean"] for domain in domains])
            for case in corrupted[domains[0]]["accuracy"]:
                values = [fmean(corrupted[domain]["accuracy"][case].values()) for domain in domains]
                yield finding(case, "", unseen, values)
            yield finding("mean", "", unseen, [corrupted[domain]["mean"] for domain in domains])


def _points(run: Path, record: Record) -> Iterator[Point]:
    spec = read_spec(run)
    about = (record.suite, record.series, record.targets, record.seed)
    if isinstance(spec, TrainSpec):
        result = read_result(run)
        validation = {score["step"]: fmean(score["accuracy"].values()) for score in result["validation"]}
        for step, watched in result["watched, not selected by"].items():
            if int(step) in validation:
                yield Point(
                    *about, int(step), 0.0, _over_parts(watched, record.targets), validation[int(step)], record.expected
                )
    elif isinstance(spec, PruneSpec) and spec.watch_every is not None:
        result = read_result(run)
        if "curve" not in result and (run / METRICS).is_file():  # runs of earlier versions
            result["curve"] = [row for row in read_metrics(run) if "watched" in row]
        for row in result.get("curve", []):
            watched, validation = fmean(row["watched"].values()), fmean(row["validation"].values())
            yield Point(*about, row["step"], row["sparsity"], watched, validation, record.expected)


def _over_parts(watched: Mapping[str, float], targets: Sequence[str]) -> float:
    """The two parts of an unseen domain, of 80 % and 20 %, as one."""
    return fmean(0.8 * watched[f"{target} 80 %"] + 0.2 * watched[f"{target} 20 %"] for target in targets)
