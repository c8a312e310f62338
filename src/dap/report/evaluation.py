"""An evaluation as tables and figures."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.report.charts import (
    Figure,
    Look,
    Panel,
    Rows,
    by_layer,
    charts_are_here,
    dots,
    histogram,
    lines,
    write_figures,
)
from dap.report.figures import SIDES
from dap.report.table import no_formula, visible
from dap.runtime.files import write_atomic
from dap.specs.file_names import MAPS, RESULT


def write_tables_and_figures(result: Mapping[str, Any], folder: Path, overlaps: Rows | None = None) -> list[str]:
    """CSV tables, and charts where altair is installed; the names of the files."""
    tables = {name: rows for name, rows in {**make_tables(result), "overlaps": overlaps or []}.items() if rows}
    for name, rows in tables.items():
        write_atomic(folder / f"{name}.csv", _csv(rows).encode(), inside=folder)
    files = [f"{name}.csv" for name in tables]
    if charts_are_here():  # tables are there all the same
        files += write_figures(make_figures(tables, result), _look(result), folder)
    return [*files, *sorted(file.name for file in folder.glob(MAPS)), RESULT]


def make_tables(result: Mapping[str, Any]) -> dict[str, Rows]:
    """Flat rows by table."""
    found = result.get("interpretation", {})
    by_sparsity = found.get("by_sparsity", {})
    return {
        "accuracy": list(_accuracy(result)),
        "attacks": list(_attacks(result)),
        "corruptions": list(_corruptions(result)),
        "corruption_means": list(_corruption_means(result)),
        "worst_domains": list(_worst_domains(result)),
        "layers": [{"wished": name, **row} for name, part in by_sparsity.items() for row in part.get("layers", ())],
        "magnitude": [{"wished": name, **part["against_magnitude"]} for name, part in by_sparsity.items()],
    }


def _accuracy(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for model, found in result["models"].items():
        for side in ("sources", "targets"):
            for domain, parts in found[side].items():
                for part, row in parts.items():
                    yield {"model": model, "domain": domain, "unseen": side == "targets", "part": part, **row}


def _attacks(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for model, found in result["models"].items():
        for attack, severities in found.get("attacks", {}).items():
            for severity, domains in severities.items():
                for domain, row in domains.items():
                    unseen = domain in found["targets"]
                    yield {
                        "model": model, "attack": attack, "severity": int(severity), "domain": domain, "unseen": unseen,
                        **{name: value for name, value in row.items() if name != "right"},
                    }  # fmt: skip


def _corruptions(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for model, found in result["models"].items():
        for domain, row in found.get("corruptions", {}).items():
            shared = {"model": model, "domain": domain, "unseen": domain in found["targets"]}
            for corruption, severities in row["accuracy"].items():
                for severity, accuracy in severities.items():
                    yield {**shared, "corruption": corruption, "severity": int(severity), "accuracy": accuracy}


def _corruption_means(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for model, found in result["models"].items():
        for domain, row in found.get("corruptions", {}).items():
            means = {name: row.get(name) for name in ("clean", "mean", "relative_error")}
            yield {"model": model, "domain": domain, "unseen": domain in found["targets"], **means}


def _worst_domains(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Clean, under every attack at every severity, and on corrupted images."""
    for model, found in result["models"].items():
        yield {"model": model, "case": "clean", "severity": "", **found["worst"]}
        for attack, severities in found.get("attacks", {}).items():
            for severity, domains in severities.items():
                yield {"model": model, "case": attack, "severity": severity, **_worst(domains, "accuracy")}
        if corrupted := found.get("corruptions"):
            yield {"model": model, "case": "corruptions", "severity": "", **_worst(corrupted, "mean")}


def _worst(domains: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    worst = min(domains, key=lambda domain: domains[domain][name])
    return {"domain": worst, "accuracy": domains[worst][name]}


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: no_formula(value) if isinstance(value, str) else value for name, value in row.items()})
    return visible(text.getvalue())


# ---- figures


def make_figures(tables: Mapping[str, Rows], result: Mapping[str, Any]) -> list[Figure]:
    """Dense against sparse; means over source domains, and over unseen ones."""
    look = _look(result)
    figures = {"attacks": _attack_panels(tables.get("attacks", []), look)}
    figures["corruptions"] = _corruption_panels(tables.get("corruptions", []), look)
    if found := result.get("interpretation", {}).get("logits"):
        title = f"{found['boundary']:.1%} of the weights lie in the boundary region |λ̃| < 1"
        figures["logits"] = {title: histogram(found)}
    if "layers" in tables:
        rows = tables["layers"]
        shown = {name: title for name, title in _BY_LAYER.items() if name in rows[0]}
        figures["layers"] = {title: by_layer(_layers(rows, name), look, title, {}) for name, title in shown.items()}
    return [Figure(name, name, "", panels) for name, panels in figures.items() if panels]


_BY_LAYER = {"sparsity": "sparsity", "keep_probability": "keep probability", "sensitivity": "sensitivity"}


def _look(result: Mapping[str, Any]) -> Look:
    return Look(tuple(result["models"]), sparsity="")


def _attack_panels(rows: Rows, look: Look) -> dict[str, Panel]:
    """Severity 0 is the clean image."""
    panels = {}
    for attack in dict.fromkeys(row["attack"] for row in rows):
        ours = [row for row in rows if row["attack"] == attack]
        first = min(row["severity"] for row in ours)
        clean = [{**row, "severity": 0, "accuracy": row["clean"]} for row in ours if row["severity"] == first]
        for side, shown in _means([*clean, *ours], "severity"):
            panels[f"{attack.upper()}, {side}"] = lines(shown, look, "severity")
    return panels


def _corruption_panels(rows: Rows, look: Look) -> dict[str, Panel]:
    cases = [{**row, "case": row["corruption"].replace("_", " ")} for row in rows]
    return {side: dots(shown, look) for side, shown in _means(cases, "case")}


def _means(rows: Rows, name: str) -> Iterator[tuple[str, Rows]]:
    """By side, over its domains."""
    for unseen, side in SIDES.items():
        values: dict[tuple[str, Any], list[float]] = defaultdict(list)
        for row in rows:
            if row["unseen"] == unseen:
                values[row["model"], row[name]].append(row["accuracy"])
        shown = [
            {"series": model, "wished": "dense", name: value, **dict.fromkeys(_BAND, fmean(found))}
            for (model, value), found in values.items()
        ]
        if shown:
            yield side, shown


_BAND = ("mean", "low", "high")


def _layers(rows: Rows, name: str) -> Rows:
    order = list(dict.fromkeys(row["layer"] for row in rows))
    return [
        {
            "series": row["wished"],
            "wished": "dense",
            "layer": row["layer"],
            "place": order.index(row["layer"]) + 1,
            "mean": row[name],
        }
        for row in rows
    ]
