"""The numbers of finished runs as flat records: a model each, labelled by what distinguishes the runs."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.errors import DapError
from dap.report.series import DENSE, name_series
from dap.runs.opening import trained_of
from dap.specs.file_names import RAW, RESULT, SPEC
from dap.specs.methods import METHODS
from dap.specs.run_files import check_run, intact, read_result, read_spec
from dap.specs.runs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, Spec, TrainSpec, folder_name
from dap.studies import read_study
from dap.studies.study import kept_files

# A trial of one and the same thing: these do not tell rows of a table apart.
_TRIAL = {"seed", "targets", "threads", "watch_every", "stop_at", "raw"}
_Kind = tuple[str, int]  # a suite, and how many of its domains are unseen at once


@dataclass(frozen=True)
class Record:
    """One model: dense, or at one sparsity."""

    run: str  # the folder's name; of raw masks, that folder in it
    method: str  # its title; "Dense"
    options: Mapping[str, Any]  # those of the run, by their path; without what makes a trial
    suite: str  # its title; apart from others of the suite, if they leave another number of domains out
    targets: tuple[str, ...]
    seed: int
    wished: str | None  # the sparsity that was asked for, or the pattern; None: nothing is cut
    sparsity: float
    validation: float  # the mean accuracy over the sources' held-out images
    unseen: float | None  # the mean accuracy over the unseen domains; None where there are none
    kept: int | None = None  # masked weights
    total: int | None = None
    layers: Mapping[str, float] = field(default_factory=dict)  # sparsity
    series: str = ""  # its row in a table, its line in a chart
    dense: str = ""  # the series of the dense model that was pruned
    right: Mapping[str, str] = field(default_factory=dict)  # by unseen domain, which images: see `dap.evaluation.bits`
    expected: tuple[tuple[str, ...], ...] = ()  # what is unseen in turn, of a study also what is not done yet
    pruning: bool = False  # whether the run is one
    domainbed: float | None = None  # as `unseen`, on the 80 % of images that DomainBed reports


def read_records(folder: str | Path) -> list[Record]:
    """Of every finished training and pruning in `folder`, a study's or one run's own."""
    folder = Path(folder)
    places = run_places(folder)
    if not places:
        raise DapError(f"there are no runs in {folder}: give the folder of a study or of a run")
    for place in places:
        check_run(place)
    done = [place for place in places if (place / RESULT).is_file()]
    # Of a search only the trial that is chosen counts, also while it is still going on.
    searches = [read_spec(place) for place in places] + [spec for spec, _ in study_runs(folder)]
    trials = {folder_name(one) for spec in searches if isinstance(spec, BestSpec) for one in spec.trainings}
    records = [record for place in done if place.name not in trials for record in _read(place)]
    expected = _expected(folder)
    of_suites = {(record.suite, len(record.targets)) for record in records}
    titles = _suite_titles(of_suites)
    records = [
        replace(record, suite=titles[kind], expected=tuple(sorted(expected[kind])))
        for record in records
        if (kind := (record.suite, len(record.targets)))
    ]
    named = name_series([(record.method, record.options, record.suite) for record in records])
    return _once(
        replace(record, series=ours, dense=dense) for record, (ours, dense) in zip(records, named, strict=True)
    )


def _once(records: Iterable[Record]) -> list[Record]:
    """A dense model is known from its own run and from every pruning of it: the former counts."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=lambda record: (record.pruning, record.run)):
        key = (
            (record.run, record.wished) if record.wished else (record.series, record.suite, record.targets, record.seed)
        )
        found.setdefault(key, record)
    return list(found.values())


def _suite_titles(kinds: Collection[_Kind]) -> dict[_Kind, str]:
    """Of a folder or a file of one's own its name, unless others have it too.

    Models that were trained without one domain have nothing to do in a mean with those that lack two.

    >>> _suite_titles([("PACS", 1), ("PACS", 2), ("images/mine", 0)])
    {('PACS', 1): 'PACS', ('PACS', 2): 'PACS (2 unseen)', ('images/mine', 0): 'mine'}
    """
    suites = [suite for suite, _ in kinds]
    names = {suite: suite if suite.startswith("hf:") else Path(suite).name for suite in suites}
    names = {suite: name if list(names.values()).count(name) == 1 else suite for suite, name in names.items()}
    usual = {(suite, unseen) for suite, unseen in kinds if unseen == 1 or suites.count(suite) == 1}
    return {kind: names[kind[0]] if kind in usual else f"{names[kind[0]]} ({kind[1]} unseen)" for kind in kinds}


def _expected(folder: Path) -> dict[_Kind, set[tuple[str, ...]]]:
    """The unseen domains of all runs of its studies."""
    found: dict[_Kind, set[tuple[str, ...]]] = defaultdict(set)
    for _, dense in study_runs(folder):
        found[dense.suite, len(dense.targets)].add(dense.targets)
    return found


def study_runs(folder: Path) -> Iterator[tuple[Spec, TrainSpec | ModelSpec]]:
    """Of the folder's studies, every run, done or not, and the dense model that it is about."""
    for file in kept_files(folder):
        for spec in read_study(file, folder).runs.values():
            run = spec.run if isinstance(spec, EvaluateSpec) else spec
            dense = run.dense if isinstance(run, PruneSpec) else run
            if isinstance(dense, BestSpec):
                dense = dense.candidates[0]
            if isinstance(dense, TrainSpec | ModelSpec):
                yield spec, dense


def run_places(folder: Path) -> list[Path]:
    """The folders of runs in it, or itself."""
    return [folder] if (folder / SPEC).is_file() else sorted(path.parent for path in folder.glob(f"*/{SPEC}"))


def _read(run: Path) -> list[Record]:
    spec = read_spec(run)
    with intact(run / RESULT):
        return [replace(record, pruning=isinstance(spec, PruneSpec)) for record in _records(run, spec)]


def _records(run: Path, spec: Spec) -> Iterator[Record]:
    result = read_result(run)
    if isinstance(spec, BestSpec):
        result = read_result(run.parent / result["chosen"])
    if isinstance(spec, TrainSpec | BestSpec):
        row = {**result, "validation": result["score"]["accuracy"]}
        yield _record(run, DENSE, {}, _named(spec), None, row)
    elif isinstance(spec, PruneSpec):
        dense = trained_of(spec, run)
        yield _record(run, DENSE, {}, _named(dense), None, result["dense"])
        method = METHODS[spec.method]
        options, title = spec.canonical(), method.called(spec.finetuned)
        for wished, row in result["sparse"].items():
            yield _record(run, title, options, _named(dense), None if method.whole else wished, row)
        for wished, row in result.get("raw", {}).items():
            raw = {**options, "prune": {**options["prune"], "average": 0.0}}
            record = _record(run, method.called(raw=True), raw, _named(dense), wished, row)
            yield replace(record, run=f"{run.name}/{RAW}")


def _named(dense: TrainSpec | BestSpec | ModelSpec) -> tuple[TrainSpec | ModelSpec, dict[str, Any]]:
    """What a dense model is called after: of a search its first trial, how many there were, and how one was chosen."""
    if not isinstance(dense, BestSpec):
        return dense, {"trials": 1}
    chosen = {"chosen": "by left-out domains"} if dense.left_out else {}
    return dense.candidates[0], {"trials": len(dense.candidates), **chosen}


def _record(
    run: Path,
    method: str,
    options: Mapping[str, Any],
    named: tuple[TrainSpec | ModelSpec, Mapping[str, Any]],
    wished: str | None,
    row: Mapping[str, Any],
) -> Record:
    dense, search = named
    seed = options.get("prune", {}).get("seed", dense.train.seed)
    if seed != dense.train.seed:  # several prunings of one dense model are no trials of each other
        options = {**options, "prune_seed": seed}
    options = {**options, "dense": {**dense.canonical(), **search}}
    unseen = [scores["all"] for scores in row["targets"].values()]
    if not all(map(isfinite, [*unseen, *row["validation"].values()])):
        raise ValueError("an accuracy is not a number")
    return Record(
        run.name,
        method,
        dict(_flat({name: value for name, value in options.items() if name not in ("method", "sparsities")})),
        dense.suite,
        dense.targets,
        dense.train.seed,
        wished,
        float(row.get("sparsity", 0.0)),
        fmean(row["validation"].values()),
        fmean(unseen) if unseen else None,
        row.get("kept"),
        row.get("total"),
        row.get("layers", {}),
        right=row.get("right", {}),
        domainbed=fmean(scores["80 %"] for scores in row["targets"].values()) if unseen else None,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in _TRIAL:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value
