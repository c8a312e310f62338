"""The tables of the paper, from records."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np

from dap.errors import DapError
from dap.evaluation.bits import unpack_bits
from dap.report.findings import Finding
from dap.report.records import Record
from dap.report.series import DENSE
from dap.report.statistics import Difference, Mean, mean_of, over_domains, paired
from dap.report.table import Column, Row, Table, file_name, sparsity_title
from dap.specs.attacks import attack_tables
from dap.specs.methods import BY_FLOPS, LEAD, METHODS

Side = Literal["unseen", "validation", "domainbed"]  # fields of a record
Key = TypeVar("Key")
Trials = dict[Key, dict[int, dict[tuple[str, ...], float]]]  # by seed and unseen domains
Right = dict[Key, dict[int, dict[tuple[str, ...], Mapping[str, str]]]]  # by seed, unseen domains and domain, as bits
Seeds = dict[int, float]  # by seed, the mean over unseen domains, of seeds that have all of them
DASH = "—"  # where nothing can be
SELECTED = "selected"  # in place of a sparsity: the one that is best on the sources' held-out images
_SIDES = {
    "unseen": "the unseen domain",
    "validation": "the sources' held-out images",
    "domainbed": "80 % of the unseen domain, as DomainBed reports it",
}
_DIFFERENCE = (
    "Δ: less the dense model with the same seed, on the same images; in brackets a 95 % bootstrap interval over seeds "
    "and images. Of few seeds it is too narrow, and of one it says nothing about others."
)
_OVER_SEEDS = "Accuracy in %; ± is the standard deviation over seeds"


class Numbers:
    """Accuracies of models by series and sparsity, suite and trial."""

    def __init__(self, records: Sequence[Record], side: Side = "unseen"):
        if not records:
            raise DapError("no run is finished yet: there is nothing to show")
        if side != "validation" and any(record.unseen is None for record in records):
            raise DapError("there are no unseen domains: show the sources' validation")
        self.records, self.side = in_order(records), side
        self.suites = tuple(dict.fromkeys(record.suite for record in self.records))
        self.targets: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        self.values: Trials[tuple[str, str, str | None]] = defaultdict(lambda: defaultdict(dict))
        self.right: Right[tuple[str, str, str | None]] = defaultdict(lambda: defaultdict(dict))
        for record in self.records:
            value: float | None = getattr(record, side)
            assert value is not None
            self.targets[record.suite] |= {record.targets, *record.expected}
            self.values[record.suite, record.series, record.wished][record.seed][record.targets] = value
            self.right[record.suite, record.series, record.wished][record.seed][record.targets] = record.right

    @property
    def models(self) -> list[tuple[str, str | None]]:
        """Series and sparsity."""
        return list(dict.fromkeys((record.series, record.wished) for record in self.records))

    @property
    def wishes(self) -> list[str]:
        return wishes(self.records)

    def seeds(self, suite: str, series: str, wished: str | None) -> Seeds:
        """What a row lacks is missing, not left out of its mean: a seed counts if it has every unseen domain."""
        return over_domains(self.values.get((suite, series, wished), {}), self.targets[suite])

    def mean(self, suite: str, series: str, wished: str | None) -> Mean | None:
        """Of a suite's seeds those are missing that this model lacks, or that lack an unseen domain."""
        seeds = self.seeds(suite, series, wished)
        every = {record.seed for record in self.records if record.suite == suite}
        return mean_of(list(seeds.values()), len(every) - len(seeds))

    def difference(self, suite: str, model: tuple[str, str | None], other: tuple[str, str | None]) -> Difference | None:
        """With the same seeds; of unseen domains also on the same images."""
        ours, theirs = self.seeds(suite, *model), self.seeds(suite, *other)
        if self.side != "unseen":
            return paired(ours, theirs)
        right = self.right.get((suite, *model), {}), self.right.get((suite, *other), {})
        return paired(ours, theirs, image_differences(*right))

    def on(self, suite: str, targets: tuple[str, ...], series: str, wished: str | None) -> Seeds:
        found = self.values.get((suite, series, wished), {})
        return {seed: values[targets] for seed, values in found.items() if targets in values}


def image_differences(
    ours: Mapping[Key, Mapping[Any, Mapping[str, str]]], theirs: Mapping[Key, Mapping[Any, Mapping[str, str]]]
) -> dict[Key, list[np.ndarray]]:
    """By seed, for every domain: 1 for an image that we alone have right, −1 for one that they alone have, else 0."""
    found: dict[Key, list[np.ndarray]] = {}
    for seed in ours.keys() & theirs.keys():
        pairs = [
            (bits, theirs[seed].get(targets, {}).get(domain, ""))
            for targets, domains in ours[seed].items()
            for domain, bits in domains.items()
        ]
        if pairs and all(other.partition(":")[0] == bits.partition(":")[0] for bits, other in pairs):
            found[seed] = [unpack_bits(bits).astype(int) - unpack_bits(other) for bits, other in pairs]
    return found


def wishes(records: Iterable[Record]) -> list[str]:
    """Sparsities that were asked for, and patterns."""
    return sorted({record.wished for record in records if record.wished is not None})


def in_order(records: Iterable[Record]) -> list[Record]:
    """Dense models, then methods as they are listed, those that are fine-tuned last; from few to many cut weights."""
    return sorted(records, key=_order)


def _order(record: Record) -> tuple[int, str, float, str]:
    methods = [DENSE, *(method.called(False, raw) for method in METHODS.values() for raw in (True, False))]
    methods += [method.called(True) for method in METHODS.values()]
    share = float(record.wished) if record.wished and ":" not in record.wished else 1.0
    return methods.index(record.method), record.series, share if record.wished else 0.0, record.wished or ""


def overview(records: Sequence[Record], side: Side = "unseen") -> Table:
    """Methods against sparsities."""
    numbers = Numbers(records, side)
    columns = [None] * any(wished is None for _, wished in numbers.models) + numbers.wishes
    rows = []
    for suite in numbers.suites:
        for series in dict.fromkeys(series for series, _ in numbers.models):
            cells = tuple(numbers.mean(suite, series, wished) for wished in columns)
            if any(numbers.values.get((suite, series, wished)) for wished in columns):
                rows.append(Row((*[suite] * (len(numbers.suites) > 1), series, *cells), series))
    heads = [Column("suite")] * (len(numbers.suites) > 1) + [Column("method")]
    shown = [Column("dense" if wished is None else sparsity_title(wished), marked=True) for wished in columns]
    title = f"Accuracy on {_SIDES[side]}, by sparsity"
    return Table(f"overview-{side}", title, _note(numbers), (*heads, *shown), tuple(rows))


def _note(numbers: Numbers) -> str:
    cells = [numbers.mean(suite, *model) for suite in numbers.suites for model in numbers.models]
    counts = sorted({cell.seeds for cell in cells if cell is not None})
    seeds = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else "0"
    unseen = ", ".join("+".join(names) for suite in numbers.suites for names in sorted(numbers.targets[suite]))
    over = "unseen domains" if numbers.side != "validation" else "source domains, then over which domain is unseen"
    note = f"{_OVER_SEEDS} ({seeds}) of the mean over {over} ({unseen})."
    if left_out := sum(cell.missing for cell in cells if cell is not None):
        note += f" {left_out} times a seed is missing, or left out since it lacks an unseen domain."
    by_flops = {record.options.get("allocation") in BY_FLOPS for record in numbers.records if record.wished is not None}
    if True in by_flops:
        which = "A sparsity" if by_flops == {True} else "Where whole channels are cut, a sparsity"
        note += f" {which} is the share of FLOPs that is gone."
    return note


def suites(records: Sequence[Record]) -> Table:
    """Methods and sparsities against suites: the paper's main table."""
    numbers = Numbers(records)
    rows = []
    for series, wished in numbers.models:
        means = [numbers.mean(suite, series, wished) for suite in numbers.suites]
        cells: list[Mean | None] = list(means)
        if len(means) > 1:
            known = [mean.mean for mean in means if mean is not None]
            cells.append(Mean(fmean(known), None, 1) if len(known) == len(means) else None)
        rows.append(Row((series, _share(wished), *cells), series, wished))
    names = [*numbers.suites, *["average"] * (len(numbers.suites) > 1)]
    columns = (Column("method"), Column("sparsity"), *(Column(name, marked=True) for name in names))
    return Table("suites", "Methods on unseen domains", _note(numbers), columns, tuple(rows))


def domains(records: Sequence[Record], suite: str) -> Table:
    """Each unseen domain of a suite, and beside fixed sparsities the one that source validation selects."""
    numbers = Numbers([record for record in records if record.suite == suite])
    targets = sorted(numbers.targets[suite])
    rows = []
    for series in dict.fromkeys(series for series, _ in numbers.models):
        for wished in [wished for name, wished in numbers.models if name == series]:
            cells = [mean_of(list(numbers.on(suite, target, series, wished).values())) for target in targets]
            rows.append(Row((series, _share(wished), *cells, numbers.mean(suite, series, wished)), series, wished))
        rows += _selected(numbers, suite, series, targets)
    names = ["+".join(target) for target in targets]
    columns = (Column("method"), Column("sparsity"), *(Column(name, marked=True) for name in [*names, "average"]))
    selected = "Selected: the best sparsity on the sources' held-out images, seed by seed; its mean in brackets."
    note = f"{_note(numbers)} {selected}"
    return Table(file_name("domains", suite), f"{suite}: each unseen domain", note, columns, tuple(rows))


def _selected(numbers: Numbers, suite: str, series: str, targets: Sequence[tuple[str, ...]]) -> list[Row]:
    """By source numbers alone; of equals the sparser."""
    best: dict[tuple[str, ...], dict[int, Record]] = defaultdict(dict)
    candidates = [record for record in numbers.records if record.series == series and record.wished]
    if len({record.wished for record in candidates}) < 2:
        return []
    for record in sorted(candidates, key=lambda record: (record.validation, record.sparsity)):
        best[record.targets][record.seed] = record
    whole = [
        [best[target][seed] for target in targets]
        for seed in sorted({seed for found in best.values() for seed in found})
        if all(seed in best[target] for target in targets)
    ]
    cells = [_with_share([[record] for record in best[target].values()]) for target in targets]
    return [Row((series, SELECTED, *cells, _with_share(whole)), series)]


def _with_share(trials: Sequence[Sequence[Record]]) -> Mean | None:
    """The mean over trials of the mean over their records; and the mean sparsity, in brackets."""
    found = mean_of([fmean(map(_unseen, trial)) for trial in trials])
    if found is None:
        return None
    return replace(found, remark=f"({100 * fmean(record.sparsity for trial in trials for record in trial):.0f} %)")


def _unseen(record: Record) -> float:
    assert record.unseen is not None
    return record.unseen


def plug_and_play(records: Sequence[Record]) -> Table | None:
    """Every dense model, and what DAP makes of it."""
    return _against_dense(
        records,
        lambda record: record.method in (DENSE, LEAD.title),
        "plug-and-play",
        "Dense models, and DAP on each",
    )


def pruning(records: Sequence[Record]) -> Table | None:
    """All methods, and what each gains or loses."""
    return _against_dense(records, lambda record: True, "pruning", "Pruning methods on the same dense models")


def _against_dense(records: Sequence[Record], wanted: Callable[[Record], bool], name: str, title: str) -> Table | None:
    records = [record for record in records if wanted(record)]
    if not any(record.wished for record in records):
        return None
    numbers = Numbers(records)
    comes_from = {record.series: record.dense for record in records}
    rows = []
    for series, wished in sorted(
        numbers.models, key=lambda model: list(comes_from.values()).index(comes_from[model[0]])
    ):
        cells = []
        for suite in numbers.suites:
            dense = (comes_from[series], None)
            difference = DASH if series == dense[0] else numbers.difference(suite, (series, wished), dense)
            cells += [numbers.mean(suite, series, wished), difference]
        rows.append(Row((series, _share(wished), *cells), series, wished))
    columns = [Column("method"), Column("sparsity")]
    for suite in numbers.suites:
        columns += [Column("accuracy", suite, marked=True), Column("Δ", suite)]
    note = f"{_note(numbers)} {_DIFFERENCE}"
    return Table(name, title, note, tuple(columns), tuple(rows))


# ---- robustness


_ROBUSTNESS = {  # by kind: what a table is about, and what its rows are
    **{table: (f"accuracy under {title}", "attack") for table, title in attack_tables().items()},
    "corruptions": ("accuracy on corrupted images", "corruption"),
}


def robustness(findings: Sequence[Finding], suite: str, kind: str) -> Table | None:
    """Dense against sparse in every case of a kind, on source and unseen domains."""
    findings = [finding for finding in findings if (finding.suite, finding.kind) == (suite, kind)]
    about, what = _ROBUSTNESS[kind]
    by_case: dict[tuple[str, str], dict[tuple[str, str | None], dict[bool, Seeds]]] = {}
    for key, trials in by_trial(findings).items():
        case, severity, series, wished, unseen = key
        by_case.setdefault((case, severity), {}).setdefault((series, wished), {})[unseen] = trials
    right: Right[tuple[str, str, str, str | None, bool]] = defaultdict(lambda: defaultdict(dict))
    for one in findings:
        key = (one.case, one.severity, one.series, one.wished, one.unseen)
        right[key][one.seed][one.targets] = one.right
    others = (finding for finding in findings if finding.series != finding.dense)
    models = dict.fromkeys((finding.series, finding.wished, finding.dense) for finding in others)
    compared = {dense for _, _, dense in models}
    alone = (finding for finding in findings if finding.series == finding.dense and finding.dense not in compared)
    models |= dict.fromkeys((finding.series, None, finding.dense) for finding in alone)
    rows = []
    for (case, severity), found in by_case.items():
        for series, wished, dense in models:
            ours = found.get((series, wished), {}) if series != dense else {}
            theirs = found.get((dense, None), {})
            cells: list[Any] = []
            for side in (False, True):
                cells += [mean_of(list(sides.get(side, {}).values())) for sides in (theirs, ours)]
                bits = [right[case, severity, *model, side] for model in ((series, wished), (dense, None))]
                cells.append(paired(ours.get(side, {}), theirs.get(side, {}), image_differences(*bits)))
            rows.append(Row((case, severity, series, _share(wished), *cells), series, wished))
    if not rows:
        return None
    columns = [Column(what), Column("severity"), Column("method"), Column("sparsity")]
    for side in ("sources", "unseen"):
        columns += [Column("dense", side), Column("sparse", side), Column("Δ", side)]
    note = f"{findings[0].images} {_OVER_SEEDS}. {_DIFFERENCE}".strip()
    return Table(file_name(kind, suite), f"{suite}: {about}", note, tuple(columns), tuple(rows))


def by_trial(findings: Sequence[Finding]) -> Mapping[tuple[str, str, str, str | None, bool], Seeds]:
    """By seed, the mean over unseen domains; a seed counts if it has every one of them."""
    found: Trials[tuple[str, str, str, str | None, bool]] = defaultdict(lambda: defaultdict(dict))
    for finding in findings:
        key = (finding.case, finding.severity, finding.series, finding.wished, finding.unseen)
        found[key][finding.seed][finding.targets] = finding.accuracy
    every = {targets for finding in findings for targets in (finding.targets, *finding.expected)}
    return {key: over_domains(seeds, every) for key, seeds in found.items()}


def _share(wished: str | None) -> str:
    return "0 %" if wished is None else sparsity_title(wished)


def all_tables(records: Sequence[Record], findings: Sequence[Finding] = ()) -> list[Table]:
    """Every table that the records have numbers for."""
    unseen = [record for record in records if record.unseen is not None]  # others have no unseen domain
    names = list(dict.fromkeys(record.suite for record in records))
    made: list[Table | None] = [overview(unseen)] if unseen else []
    made.append(overview(records, "validation"))
    if unseen:
        made += [overview(unseen, "domainbed"), suites(unseen)]
        made += [domains(unseen, suite) for suite in names if any(record.suite == suite for record in unseen)]
        made += [plug_and_play(unseen), pruning(unseen)]
    made += [robustness(findings, suite, kind) for kind in _ROBUSTNESS for suite in names]
    return [table for table in made if table is not None]
