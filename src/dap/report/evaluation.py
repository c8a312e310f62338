"""An evaluation as tables and figures."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dap.files import replacing, write_atomic

Rows = list[dict[str, Any]]


def write_tables_and_figures(result: Mapping[str, Any], folder: Path) -> list[str]:
    """CSV tables, and charts where altair is installed; the names of the files."""
    tables = {name: rows for name, rows in make_tables(result).items() if rows}
    for name, rows in tables.items():
        write_atomic(folder / f"{name}.csv", _csv(rows).encode())
    files = [f"{name}.csv" for name in tables]
    for name, chart in _charts(tables, result):
        for ending in ("svg", "png"):
            with replacing(folder / f"{name}.{ending}") as temporary:
                chart.save(str(temporary), format=ending, **({"ppi": 144} if ending == "png" else {}))
            files.append(f"{name}.{ending}")
    return [*files, "result.json"]


def make_tables(result: Mapping[str, Any]) -> dict[str, Rows]:
    """Flat rows by table."""
    found = result.get("interpretation", {})
    by_sparsity = found.get("by_sparsity", {})
    return {
        "accuracy": list(_accuracy(result)),
        "attacks": list(_attacks(result)),
        "corruptions": list(_corruptions(result)),
        "layers": [{"wished": name, **row} for name, part in by_sparsity.items() for row in part.get("layers", ())],
        "magnitude": [{"wished": name, **part["against_magnitude"]} for name, part in by_sparsity.items()],
        "overlaps": [{"wished": name, **row} for name, part in by_sparsity.items() for row in part["overlaps"]],
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
                        **row,
                    }  # fmt: skip


def _corruptions(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for model, found in result["models"].items():
        for domain, row in found.get("corruptions", {}).items():
            shared = {"model": model, "domain": domain, "unseen": domain in found["targets"]}
            for corruption, severities in row["accuracy"].items():
                for severity, accuracy in severities.items():
                    yield {**shared, "corruption": corruption, "severity": int(severity), "accuracy": accuracy}


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# ---- figures


def _charts(tables: Mapping[str, Rows], result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    try:
        import altair
        import vl_convert  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:  # tables are there all the same
        return
    if "attacks" in tables:
        yield "attacks", _lines(altair, tables["attacks"], "attack")
    if "corruptions" in tables:
        yield "corruptions", _lines(altair, tables["corruptions"], "corruption")
    if logits := result.get("interpretation", {}).get("logits"):
        yield "logits", _histogram(altair, logits)
    if "layers" in tables:
        yield "layers", _layers(altair, tables["layers"])


def _data(altair: Any, rows: Rows) -> Any:
    return altair.Data(values=rows)


def _lines(altair: Any, rows: Rows, kind: str) -> Any:
    """Accuracy against severity, a line for every model; sources and unseen domains side by side."""
    rows = [{**row, "side": "unseen" if row["unseen"] else "sources"} for row in rows]
    return (
        altair.Chart(_data(altair, rows))
        .mark_line(point=True)
        .encode(
            x=altair.X("severity:O"),
            y=altair.Y("mean(accuracy):Q", title="accuracy", axis=altair.Axis(format="%")),
            color=altair.Color("model:N", scale=altair.Scale(scheme="viridis")),
            strokeDash=altair.StrokeDash("model:N"),
        )
        .properties(width=160, height=130)
        .facet(row=altair.Row(f"{kind}:N", title=None), column=altair.Column("side:N", title=None))
    )


def _histogram(altair: Any, logits: Mapping[str, Any]) -> Any:
    """Counts on a logarithmic axis; the boundary region |λ̃| < 1 is shaded, the threshold dashed."""
    edges = logits["edges"]
    rows = [
        {"from": low, "to": high, "weights": count}
        for low, high, count in zip(edges, edges[1:], logits["counts"], strict=False)
        if count
    ]
    bars = (
        altair.Chart(_data(altair, rows))
        .mark_bar(color="#3b528b")
        .encode(
            x=altair.X("from:Q", title="λ̃"),
            x2="to:Q",
            y=altair.Y("weights:Q", scale=altair.Scale(type="log", domainMin=1)),
            y2=altair.datum(1),
        )
    )
    region = altair.Chart(_data(altair, [{"from": -1, "to": 1}])).mark_rect(color="#d95f02", opacity=0.2)
    line = altair.Chart(_data(altair, [{"at": logits["threshold"]}])).mark_rule(strokeDash=[4, 4]).encode(x="at:Q")
    title = f"{logits['boundary']:.1%} of the weights lie in the boundary region |λ̃| < 1"
    return (region.encode(x="from:Q", x2="to:Q") + bars + line).properties(width=460, height=240, title=title)


def _layers(altair: Any, rows: Rows) -> Any:
    order = list(dict.fromkeys(row["layer"] for row in rows))
    shown = {"sparsity": "sparsity", "keep_probability": "keep probability", "sensitivity": "sensitivity"}
    flat = [
        {"wished": row["wished"], "layer": row["layer"], "what": title, "value": row[name]}
        for row in rows
        for name, title in shown.items()
    ]
    return (
        altair.Chart(_data(altair, flat))
        .mark_line(point=True)
        .encode(
            x=altair.X("layer:N", sort=order, axis=altair.Axis(labelLimit=120, labelFontSize=8)),
            y=altair.Y("value:Q", title=None),
            color=altair.Color("wished:N", title="sparsity", scale=altair.Scale(scheme="viridis")),
        )
        .properties(width=520, height=110)
        .facet(row=altair.Row("what:N", title=None))
        .resolve_scale(y="independent")
    )
