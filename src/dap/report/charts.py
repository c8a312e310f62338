"""Charts, defined once for the page and for a paper's figures: colours, dashes and points tell lines apart."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dap.errors import DapError
from dap.report.table import sparsity_title, visible
from dap.runtime.files import write_atomic

if TYPE_CHECKING:
    import altair

# Apart for colour-blind readers, and readable on white as on black.
# Cycles of lengths without a common factor: 8 × 7 × 9 lines differ in one of the three at least.
COLOURS = ("#6b7280", "#0072b2", "#d55e00", "#009e73", "#b0579a", "#a87900", "#2f8fcb", "#8c564b")
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3], [10, 4])
SHAPES = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left", "stroke",
)  # fmt: skip
ENDINGS = ("svg", "pdf", "png")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Panel:
    """A chart, and its rows apart from it: altair would copy and check every one of them at every step."""

    chart: "altair.LayerChart"
    datasets: dict[str, Rows]  # by the name that the chart has for them
    series: str = ""  # if it shows only one

    @property
    def wishes(self) -> set[str]:
        """Sparsities that it has something for."""
        return {row["wished"] for rows in self.datasets.values() for row in rows if "wished" in row} - {"dense"}


@dataclass(frozen=True)
class Figure:
    """Panels side by side."""

    name: str  # of its files
    title: str
    note: str
    panels: dict[str, Panel]  # by heading
    at_sparsity: bool = False  # it shows one, which a page chooses


@dataclass(frozen=True)
class Look:
    """The same line looks the same in every chart."""

    series: tuple[str, ...]
    sparsity: str  # that is shown where one is
    legend: bool = True  # a page has its own

    def params(self) -> list[Any]:
        """What a page sets: the sparsity, and the series that are switched off."""
        alt = _altair()
        return [alt.param(name="sparsity", value=self.sparsity), alt.param(name="hidden", value=[])]

    def encodings(self, *names: str) -> dict[str, Any]:
        """Of these channels: color, strokeDash, shape."""
        alt, count = _altair(), len(self.series)
        legend = (
            alt.Legend(title=None, orient="bottom", columns=2, labelLimit=300, symbolOpacity=1) if self.legend else None
        )

        def scale(values: Sequence[Any]) -> Any:
            return alt.Scale(domain=list(self.series), range=[values[place % len(values)] for place in range(count)])

        channels = {
            "color": alt.Color("series:N", scale=scale(COLOURS), legend=legend),
            "strokeDash": alt.StrokeDash("series:N", scale=scale(DASHES), legend=legend),
            "shape": alt.Shape("series:N", scale=scale(SHAPES), legend=legend),
        }
        return {name: channels[name] for name in names}


def charts_are_here() -> bool:
    """Whether they can be drawn: they need packages that not everyone has."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))


def _altair() -> Any:
    if not charts_are_here():
        raise DapError("charts need altair and vl-convert: pip install 'dap[report]'")
    import altair

    return altair


def _source(rows: Iterable[Mapping[str, Any]]) -> tuple[Any, dict[str, Rows]]:
    """Rows for a chart, by a name of their own; rounded, since a page is read, not computed with."""
    short = [
        {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()} for row in rows
    ]
    name = hashlib.sha256(json.dumps(short).encode()).hexdigest()[:12]
    return _altair().NamedData(name), {name: short}


_SHOWN = "indexof(hidden, datum.series) < 0"
_CHOSEN = "(datum.wished == 'dense' || datum.wished == sparsity)"


def _tooltips(*names: str) -> list[Any]:
    alt = _altair()
    percent = {"mean": "accuracy", "low": "− 1 std", "high": "+ 1 std", "sparsity": "sparsity"}
    return [
        alt.Tooltip(f"{name}:Q", title=percent[name], format=".1%")
        if name in percent
        else alt.Tooltip(f"{name}:N", title=name)
        for name in names
    ]


def lines(rows: Rows, look: Look, along: str) -> Panel:
    """Lines with a band of one standard deviation, along sparsity, steps or severity."""
    alt = _altair()
    axes: dict[str, Callable[[], Any]] = {
        "sparsity": lambda: alt.X("sparsity:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        "step": lambda: alt.X("step:Q", scale=alt.Scale(domain=[0, max(row["step"] for row in rows)])),
        "severity": lambda: alt.X("severity:O", axis=alt.Axis(labelAngle=0)),
    }
    source, datasets = _source(rows)
    base = alt.Chart(source).transform_filter(f"{_SHOWN} && {_CHOSEN}" if along == "severity" else _SHOWN)
    base = base.encode(x=axes[along](), **look.encodings("color"))
    accuracy = alt.Y("mean:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    band = base.mark_area(opacity=0.15, stroke=None).encode(y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=accuracy, **look.encodings("strokeDash"))
    tips = _tooltips(
        "series", *dict.fromkeys([along, "sparsity"] if along == "step" else [along]), "mean", "low", "high", "seeds"
    )
    points = base.mark_point(filled=True, opacity=1, size=55 if along != "step" else 25).encode(
        y=accuracy, tooltip=tips, **look.encodings("shape")
    )
    layers_ = [*([band] if any("low" in row for row in rows) else []), line, points]
    if along == "step":
        there = base.transform_filter("toNumber(sparsity) > 0 && datum.sparsity >= toNumber(sparsity)")
        there = there.transform_aggregate(step="min(step)", groupby=["series"])
        layers_.insert(0, there.mark_rule(strokeDash=[3, 3]))
    if along == "sparsity":
        # A pattern such as 2:4 is no number, and has no rule.
        rule = alt.Chart(alt.Data(values=[{}])).transform_calculate(at="toNumber(sparsity)")
        rule = rule.transform_filter("datum.at >= 0")
        layers_.insert(0, rule.mark_rule(strokeDash=[3, 3], color="#8a8f98").encode(x=alt.X("at:Q", title="sparsity")))
    return Panel(alt.layer(*layers_), datasets)


def dots(rows: Rows, look: Look) -> Panel:
    """A row for every corruption."""
    alt = _altair()
    order = list(dict.fromkeys(row["case"] for row in rows))
    source, datasets = _source(rows)
    base = (
        alt.Chart(source)
        .transform_filter(f"{_SHOWN} && {_CHOSEN}")
        .encode(y=alt.Y("case:N", sort=order, title=None), **look.encodings("color"))
    )
    spread = base.mark_rule(opacity=0.5).encode(x=alt.X("low:Q"), x2="high:Q")
    points = base.mark_point(filled=True, opacity=1, size=70).encode(
        x=alt.X("mean:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False)),
        tooltip=_tooltips("series", "case", "mean", "low", "high", "seeds"),
        **look.encodings("shape"),
    )
    return Panel(alt.layer(spread, points), datasets)


def by_layer(rows: Rows, look: Look, what: str = "sparsity", axis: Mapping[str, Any] | None = None) -> Panel:
    """Lines from the first layer to the last."""
    alt = _altair()
    axis = {"axis": alt.Axis(format="%"), "scale": alt.Scale(domain=[0, 1])} if axis is None else axis
    source, datasets = _source(rows)
    base = (
        alt.Chart(source)
        .transform_filter(f"{_SHOWN} && {_CHOSEN}")
        .encode(
            x=alt.X("place:Q", title="layer", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("mean:Q", title=what, **axis),
            **look.encodings("color"),
        )
    )
    tips = [alt.Tooltip("series:N"), alt.Tooltip("layer:N"), alt.Tooltip("mean:Q", title=what, format=".3")]
    points = base.mark_point(filled=True, opacity=1, size=35).encode(tooltip=tips, **look.encodings("shape"))
    line = base.mark_line(strokeWidth=1.5).encode(**look.encodings("strokeDash"))
    return Panel(alt.layer(line, points), datasets)


def histogram(values: Mapping[str, Any], series: str = "") -> Panel:
    """Counts on a logarithmic axis; the boundary region |λ̃| < 1 is shaded.

    Two rules: the threshold of mask learning, and, finely dashed, where a page's sparsity cuts the ranking.
    """
    alt = _altair()
    edges, counts = values["edges"], values["counts"]
    rows = [
        {"from": low, "to": high, "weights": count, "below": below / sum(counts)}
        for low, high, count, below in zip(edges, edges[1:], counts, accumulate(counts), strict=False)
        if count
    ]
    tips = [
        alt.Tooltip(f"{name}:Q", format=form) for name, form in {"from": ".2f", "to": ".2f", "weights": ","}.items()
    ]
    source, datasets = _source(rows)
    bars = (
        alt.Chart(source)
        .mark_bar(color=COLOURS[1])
        .encode(
            x=alt.X("from:Q", title="λ̃", scale=alt.Scale(domain=[min(-1.0, edges[0]), max(1.0, edges[-1])])),
            x2="to:Q",
            y=alt.Y("weights:Q", scale=alt.Scale(type="log", domainMin=1)),
            y2=alt.datum(1),
            tooltip=tips,
        )
    )
    region = alt.Chart(alt.Data(values=[{"from": -1, "to": 1}])).mark_rect(color=COLOURS[2], opacity=0.2)
    line = alt.Chart(alt.Data(values=[{"at": values["threshold"]}])).mark_rule(strokeDash=[4, 4]).encode(x="at:Q")
    cut = alt.Chart(source).transform_filter("toNumber(sparsity) > 0 && datum.below >= toNumber(sparsity)")
    cut = cut.transform_aggregate(at="min(to)").mark_rule(strokeDash=[1, 3]).encode(x="at:Q")
    return Panel(alt.layer(region.encode(x="from:Q", x2="to:Q"), bars, line, cut), datasets, series)


# ---- files


def write_figures(figures: Sequence[Figure], look: Look, folder: Path) -> list[str]:
    """Each as SVG, PDF and PNG."""
    alt, files = _altair(), []
    for figure in figures:
        at = f" at {sparsity_title(look.sparsity)}" if figure.at_sparsity and look.sparsity else ""
        charts = [
            panel.chart.properties(width=300, height=210, title=f"{head}{at}") for head, panel in figure.panels.items()
        ]
        spec = alt.concat(*charts, columns=2).add_params(*look.params()).to_dict()
        spec["datasets"] = {name: rows for panel in figure.panels.values() for name, rows in panel.datasets.items()}
        drawn = {row.get("series") for rows in spec["datasets"].values() for row in rows}
        _list_in_legends(spec, [series for series in look.series if series in drawn])
        for ending in ENDINGS:
            write_atomic(folder / f"{figure.name}.{ending}", picture(visible(spec), ending), inside=folder)
            files.append(f"{figure.name}.{ending}")
    return files


def _list_in_legends(part: Any, series: Sequence[str]) -> None:
    """These and no others: a scale has all, so that a line looks the same in every chart."""
    for name, inner in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if name == "legend" and isinstance(inner, dict):
            inner["values"] = series
        elif name != "datasets":
            _list_in_legends(inner, series)


def picture(spec: dict[str, Any], ending: str) -> bytes:
    """As a file of this kind holds it."""
    import vl_convert  # pyright: ignore[reportMissingImports]

    if ending == "svg":
        return vl_convert.vegalite_to_svg(spec).encode()
    options = {"scale": 2} if ending == "png" else {}
    return {"pdf": vl_convert.vegalite_to_pdf, "png": vl_convert.vegalite_to_png}[ending](spec, **options)
