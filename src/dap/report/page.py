"""The page: one HTML file with everything in it, for whoever decides and for whoever checks."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from dap.data.cache import cache_folder
from dap.errors import DapError
from dap.report.charts import COLOURS, DASHES, Figure, Look
from dap.report.figures import all_figures
from dap.report.findings import Findings
from dap.report.origin import Origin
from dap.report.records import Record
from dap.report.statistics import Difference, Mean
from dap.report.summary import Summary, summarise
from dap.report.table import Table, Value, show, sparsity_title, visible
from dap.report.tables import in_order, wishes
from dap.runtime.files import write_atomic

_HERE = Path(__file__).parent
_TALL = ("corruptions",)  # a row for each
# The package that holds Vega, and the SHA-256 of the one bundle of it that pages embed.
VEGA = "vl-convert-python==1.9.0.post1"
_VEGA_SHA256 = "3425bd951a44d478d0505c6b5d1e8d57656b6e9a4da7bfe88a718ce61d76e572"


@dataclass(frozen=True)
class Contents:
    """What a report shows."""

    records: Sequence[Record]
    findings: Findings
    origin: Origin
    tables: Sequence[Table]
    published: Sequence[Table] = ()  # other people's numbers, apart from ours
    sparsity: str = "0.8"  # that is shown first, or what is nearest


@dataclass(frozen=True)
class Page:
    contents: Contents
    refresh: int | None = None  # seconds, while a study runs

    @property
    def sparsities(self) -> list[str]:
        return wishes(self.contents.records)

    @property
    def look(self) -> Look:
        return look_of(self.contents, legend=False)

    def html(self) -> str:
        figures = all_figures(self.contents.records, self.contents.findings, self.look)
        charts, drawn = _figures(figures, self.look)
        scripts = {"vega": vega(), "script": (_HERE / "page.js").read_text()}
        parts = {
            "policy": _policy(*scripts.values()),
            "title": escape(self.contents.origin.title),
            "refresh": f'<meta http-equiv="refresh" content="{self.refresh}">' if self.refresh else "",
            "css": (_HERE / "page.css").read_text(),
            "status": escape(self.contents.origin.status),
            "summary": "\n".join(_summary(one, self.look.sparsity) for one in summarise(self.contents.records)),
            "controls": self._controls(),
            "figures": drawn,
            "tables": "\n".join(_table(table) for table in self.contents.tables if table.name != "overview-unseen"),
            "paper": _published(self.contents.published),
            "reproduce": _reproduce(self.contents.origin),
            "data": _json({"sparsities": self.sparsities, "titles": self._titles, "charts": charts}),
        }
        return Template((_HERE / "page.html").read_text()).substitute(visible(parts) | scripts)

    @property
    def _titles(self) -> list[str]:
        return [sparsity_title(wished) for wished in self.sparsities]

    def _controls(self) -> str:
        slider = ""
        if self.sparsities:
            start = self.sparsities.index(self.look.sparsity)
            slider = f"""<label for="sparsity">Sparsity <input type="range" id="sparsity" min="0" \
max="{len(self.sparsities) - 1}" step="1" value="{start}"><output id="sparsity-shown" for="sparsity">\
{self._titles[start]}</output></label>
<label><input type="checkbox" id="every"> tables show every sparsity</label>"""
        boxes = "\n".join(_box(series, place) for place, series in enumerate(self.look.series))
        return f"""<div class="controls" role="group" aria-label="What is shown">{slider}
<fieldset><legend>Methods</legend>{boxes}</fieldset></div>"""


def look_of(contents: Contents, legend: bool = True) -> Look:
    """What is nearest to the sparsity that is to be shown first is so."""
    wished, start = wishes(contents.records), contents.sparsity
    if start not in wished:
        try:
            place = float(start)
        except ValueError:
            raise DapError(f"no model was asked for at {start}; there are {', '.join(wished) or 'none'}") from None
        shares = [wish for wish in wished if ":" not in wish]
        start = min(shares, key=lambda wish: abs(float(wish) - place)) if shares else next(iter(wished), "")
    return Look(tuple(dict.fromkeys(record.series for record in in_order(contents.records))), start, legend)


def vega() -> str:
    """Vega with all that it needs: bundled once, since that takes seconds, and kept; checked each time."""
    file = cache_folder() / f"vega-{VEGA.split('==')[1]}.js"
    bundle = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(bundle).hexdigest() != _VEGA_SHA256:
        import vl_convert  # pyright: ignore[reportMissingImports]

        bundle = vl_convert.javascript_bundle().encode()  # pyright: ignore[reportCallIssue]
        if hashlib.sha256(bundle).hexdigest() != _VEGA_SHA256:
            found = f"vl-convert-python {version('vl-convert-python')}"
            raise DapError(
                f"the scripts of {found} are not those that pages embed: pip install --force-reinstall {VEGA}"
            )
        write_atomic(file, bundle)
    return bundle.decode().replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    """The page's Content-Security-Policy: these scripts run and no other, no text becomes code, nothing is fetched."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(values: Any) -> str:
    """In a script's text nothing may look like its end."""
    return json.dumps(visible(values), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _summary(summary: Summary, start: str) -> str:
    cards = "".join(f"<div><dt>{escape(card.label)}</dt><dd>{escape(card.value)}</dd></div>" for card in summary.cards)
    hidden = "" if summary.wished == start else " hidden"
    heading = f"{summary.suite}, {summary.series}, {sparsity_title(summary.wished)} sparse"
    about = f'data-wished="{escape(summary.wished)}" data-series="{escape(summary.series)}"'
    return (
        f'<div class="summary" {about}{hidden}><h3>{escape(heading)}</h3>'
        f'<dl class="cards">{cards}</dl><p>{escape(summary.text)}</p></div>'
    )


def _box(series: str, place: int) -> str:
    colour, dash = COLOURS[place % len(COLOURS)], " ".join(map(str, DASHES[place % len(DASHES)]))
    dashes = "" if dash == "1 0" else f' stroke-dasharray="{dash}"'
    line = f'<line x1="0" x2="26" y1="4" y2="4" stroke="{colour}" stroke-width="3"{dashes}/>'
    swatch = f'<svg class="swatch" width="26" height="8" aria-hidden="true">{line}</svg>'
    return f'<label><input type="checkbox" checked data-series="{escape(series)}">{swatch}{escape(series)}</label>'


def _figures(figures: Sequence[Figure], look: Look) -> tuple[dict[str, Any], str]:
    """Charts by the id of their place, and the places."""
    charts, parts = {}, []
    for figure in figures:
        panels = []
        for number, (heading, panel) in enumerate(figure.panels.items()):
            place = f"chart-{figure.name}-{number}"
            sized = panel.chart.properties(width="container", height="container", background="transparent")
            charts[place] = sized.add_params(*look.params()).to_dict(validate=False) | {  # checking takes long
                "autosize": {"type": "fit", "contains": "padding"},
                "description": f"{figure.title}: {heading}. {figure.note}",
                "datasets": panel.datasets,
            }
            kind = "chart tall" if figure.name in _TALL else "chart"
            about = f' data-series="{escape(panel.series)}"' if panel.series else ""
            absent = ""
            if figure.at_sparsity:
                about += f' data-wishes="{escape(" ".join(sorted(panel.wishes)))}"'
                absent = '<p class="note absent" hidden>Nothing was evaluated at this sparsity.</p>'
            panels.append(
                f'<div class="panel"{about}><h4>{escape(heading)}</h4>{absent}'
                f'<div class="{kind}" id="{place}"></div></div>'
            )
        parts.append(
            f'<article id="{figure.name}"><h3>{escape(figure.title)}</h3><p class="note">{escape(figure.note)}</p>'
            f'<div class="panels">{"".join(panels)}</div></article>'
        )
    return charts, "\n".join(parts)


# ---- tables


def _table(table: Table, prefix: str = "table") -> str:
    marks = table.marks()
    rows = []
    for number, row in enumerate(table.rows):
        cells = [_cell(value, marks.get((number, place), 0)) for place, value in enumerate(row.cells)]
        about = f' data-series="{escape(row.series)}" data-wished="{escape(row.wished or "")}"'
        rows.append(f"<tr{about}>{''.join(cells)}</tr>")
    head = "".join(_heads(table))
    title = f"{prefix}-{table.name}"
    return f"""<article id="{escape(title)}"><h3>{escape(table.title)}</h3><p class="note">{escape(table.note)}</p>
<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table><thead>{head}</thead>
<tbody>
{chr(10).join(rows)}
</tbody></table></div></article>"""


def _heads(table: Table) -> Iterator[str]:
    if any(column.group for column in table.columns):
        yield "<tr>"
        for group, span in table.groups():
            yield f'<th colspan="{span}" scope="colgroup">{escape(group)}</th>' if group else "<td></td>"
        yield "</tr>"
    yield "<tr>"
    for place, column in enumerate(table.columns):
        kind = ' class="text"' if table.is_text(place) else ""
        yield f'<th scope="col"{kind}><button type="button" data-column="{place}">{escape(column.title)}</button></th>'
    yield "</tr>"


def _cell(value: Value, mark: int) -> str:
    kinds = [name for name, wanted in {"text": isinstance(value, str), "missing": value is None}.items() if wanted]
    kinds += {1: ["best"], 2: ["second"]}.get(mark, [])
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<td{kind} data-value="{escape(_key(value))}">{escape(show(value))}</td>'


def _key(value: Value) -> str:
    """What a column is sorted by."""
    if isinstance(value, Mean | Difference):
        return f"{value.mean:.6f}"
    text = value or ""
    if number := re.fullmatch(r"([+-]?\d+(?:\.\d+)?)(?: ?[%±(\[].*)?", text):  # a share, or a number as others print it
        return number[1]
    return text.strip("—–")


def _published(tables: Sequence[Table]) -> str:
    if not tables:
        return ""
    shown = "\n".join(_table(table, "published") for table in tables)
    return f"""<section id="paper" aria-labelledby="paper-title"><h2 id="paper-title">Published numbers</h2>
<p class="note">As the paper reports them, with other images, weights and budgets: to be set beside the tables above,
not into them.</p>
{shown}
</section>"""


def _reproduce(origin: Origin) -> str:
    commands = escape("\n".join(origin.commands))
    parts = [f"<pre tabindex='0'>{commands}</pre>"]
    for title, text in origin.documents.items():
        parts.append(f"<details><summary>{escape(title)}</summary><pre tabindex='0'>{escape(text)}</pre></details>")
    return "\n".join([*parts, *(_table(table, "origin") for table in origin.tables)])
