"""The figures of the paper, from records and findings."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from dap.report.charts import Figure, Look, Rows, by_layer, dots, histogram, lines
from dap.report.findings import Finding, Findings, Histogram, Point
from dap.report.records import Record
from dap.report.statistics import mean_of, over_domains
from dap.report.tables import Numbers, Side, Trials, by_trial
from dap.specs.attacks import attack_tables
from dap.specs.methods import METHODS

SIDES = {True: "unseen domains", False: "source domains"}


def all_figures(records: Sequence[Record], findings: Findings, look: Look) -> list[Figure]:
    """Every figure that there are numbers for."""
    made: list[Figure | None] = [
        tradeoff(records, look),
        dynamics(findings.points, look),
        alpha(records, look),
        *(robustness(findings, look, table) for table in attack_tables()),
        robustness(findings, look, "corruptions"),
        logits(findings.histograms),
        layers(records, look),
    ]
    return [figure for figure in made if figure is not None and figure.panels]


def tradeoff(records: Sequence[Record], look: Look) -> Figure:
    """Accuracy against sparsity; lines of sparse models begin at the dense one."""
    note = "Mean over unseen domains, ± one standard deviation over seeds. The rule marks the chosen sparsity."
    panels = {heading: lines(rows, look, "sparsity") for heading, rows in _tradeoff_rows(records)}
    return Figure("accuracy-and-sparsity", "Accuracy against sparsity", note, panels)


def alpha(records: Sequence[Record], look: Look) -> Figure | None:
    """What the domains' agreement is worth: DAP with and without it."""
    ours = [record for record in records if _is_learnt(record)]
    if len({_alpha(record) == 0 for record in ours}) < 2:
        return None
    panels = {heading: lines(rows, look, "sparsity") for heading, rows in _tradeoff_rows(ours, {True: "unseen"})}
    return Figure(
        "alpha", "With and without domain sensitivity", "α > 0 against α = 0, mean ± one standard deviation.", panels
    )


def _is_learnt(record: Record) -> bool:
    return record.method in {method.title for method in METHODS.values() if method.learns}


def _alpha(record: Record) -> float:
    own = next((method.alpha for method in METHODS.values() if method.title == record.method), None)
    return record.options.get("prune.alpha", 1.0) if own is None else own


_BOTH: dict[bool, Side] = {True: "unseen", False: "validation"}


def _tradeoff_rows(records: Sequence[Record], sides: Mapping[bool, Side] = _BOTH) -> Iterator[tuple[str, Rows]]:
    for suite in dict.fromkeys(record.suite for record in records):
        ours = [record for record in records if record.suite == suite]
        for unseen, side in sides.items():
            known = [record for record in ours if not unseen or record.unseen is not None]
            if not known:
                continue
            numbers, rows = Numbers(known, side), []
            shares = {
                model: fmean(record.sparsity for record in ours if (record.series, record.wished) == model)
                for model in numbers.models
            }
            begins = [(record.series, (record.dense, None)) for record in ours if record.wished]  # at the dense model
            for series, model in dict.fromkeys([*begins, *((model[0], model) for model in numbers.models)]):
                if band := _band(numbers.seeds(suite, *model)):
                    rows.append({"series": series, "sparsity": shares.get(model, 0.0), **band})
            if rows:
                yield f"{suite}, {SIDES[unseen]}", rows


def dynamics(points: Sequence[Point], look: Look) -> Figure:
    """Accuracy over the steps of dense training and of mask learning."""
    panels = {}
    for suite in dict.fromkeys(point.suite for point in points):
        ours = [point for point in points if point.suite == suite]
        every = {targets for point in ours for targets in (point.targets, *point.expected)}
        trials = Counter(series for series, *_ in {(point.series, point.seed, point.targets) for point in ours})
        for unseen in (True, False):
            values: Trials[tuple[str, int]] = defaultdict(lambda: defaultdict(dict))
            shares: dict[tuple[str, int], list[float]] = defaultdict(list)
            for point in ours:
                key = point.series, point.step
                values[key][point.seed][point.targets] = point.unseen if unseen else point.validation
                shares[key].append(point.sparsity)
            rows = [
                {"series": series, "step": step, "sparsity": fmean(shares[series, step]), **band}
                for (series, step), found in sorted(values.items())
                if len(shares[series, step]) == trials[series]  # or the mean would be of others from step to step
                if (band := _band(over_domains(found, every)))
            ]
            if rows:
                panels[f"{suite}, {SIDES[unseen]}"] = lines(rows, look, "step")
    note = "Mean over unseen domains ± one standard deviation over seeds; nothing is selected by unseen domains."
    note += " Steps that every run has: a curve ends with the run that stops first."
    note += " A rule marks where a method reaches the chosen sparsity."
    return Figure("dynamics", "Accuracy over the steps", note, panels)


def robustness(findings: Findings, look: Look, kind: str) -> Figure:
    """Curves by severity for attacks; a dot for every corruption."""
    ours = [finding for finding in findings.robustness if finding.kind == kind]
    panels = {}
    for suite in dict.fromkeys(finding.suite for finding in ours):
        for unseen in (True, False):
            rows = list(_robustness_rows([one for one in ours if (one.suite, one.unseen) == (suite, unseen)]))
            if not rows:
                continue
            if kind == "corruptions":
                panels[f"{suite}, {SIDES[unseen]}"] = dots(rows, look)
                continue
            for attack in dict.fromkeys(row["case"] for row in rows if row["case"] != "clean"):
                shown = [row for row in rows if row["case"] in (attack, "clean")]
                panels[f"{suite}, {attack.upper()}, {SIDES[unseen]}"] = lines(shown, look, "severity")
    under = attack_tables()
    title = f"Accuracy under {under[kind]}" if kind in under else "Accuracy on corrupted images"
    note = "At the chosen sparsity, beside the dense model; mean ± one standard deviation over seeds."
    note += " Mean over five severities." if kind == "corruptions" else " Severity 0 is the clean image."
    return Figure(kind, title, note, panels, at_sparsity=True)


def _robustness_rows(findings: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    for (case, severity, series, wished, _), seeds in by_trial(findings).items():
        if band := _band(seeds):
            about = {
                "case": case.replace("_", " "),
                "severity": severity,
                "series": series,
                "wished": wished or "dense",
            }
            yield about | band


def logits(histograms: Sequence[Histogram]) -> Figure:
    """One for every series and suite: that of the first seed and unseen domain."""
    panels = {}
    for found in sorted(histograms, key=lambda one: (one.record.series, one.record.seed, one.record.targets)):
        suite = found.record.suite
        if not any(heading.startswith(f"{suite}, {found.record.series}:") for heading in panels):
            about = f"{'+'.join(found.record.targets)} unseen, seed {found.record.seed}"
            panels[f"{suite}, {found.record.series}: {about}"] = histogram(found.values, found.record.series)
    note = "Weights by their logit λ̃ after mask learning: the boundary region |λ̃| < 1 is shaded, the threshold dashed."
    note += " Dotted is where the chosen sparsity cuts this ranking; masks from the path were cut on the way."
    return Figure("logits", "How sure the masks are", note, panels)


def layers(records: Sequence[Record], look: Look) -> Figure:
    """Where in the network weights were cut."""
    panels = {}
    for suite in dict.fromkeys(record.suite for record in records):
        values: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
        for record in records:
            if record.suite == suite and record.wished:
                for place, (layer, sparsity) in enumerate(record.layers.items(), 1):
                    values[record.series, record.wished, layer, place].append(sparsity)
        rows = [
            {"series": series, "wished": wished, "layer": layer, "place": place, "mean": fmean(found)}
            for (series, wished, layer, place), found in values.items()
        ]
        if rows:
            panels[suite] = by_layer(rows, look)
    return Figure(
        "layers",
        "Sparsity by layer",
        "From the first layer to the last, mean over seeds and unseen domains, at the chosen sparsity.",
        panels,
        at_sparsity=True,
    )


def _band(seeds: Mapping[int, float]) -> dict[str, Any] | None:
    """Mean ± standard deviation over seeds."""
    found = mean_of(list(seeds.values()))
    if found is None:
        return None
    band: dict[str, Any] = {"mean": found.mean, "seeds": found.seeds}
    if found.spread is not None:
        band |= {"low": max(0.0, found.mean - found.spread), "high": min(1.0, found.mean + found.spread)}
    return band
