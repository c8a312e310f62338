"""Whatever a name holds, a reader of a table sees the name and nothing else."""

import csv
import io
import json
import re
from functools import cache
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dap.report import Column, Findings, Mean, Record, Row, Table, all_tables
from dap.report.evaluation import _csv
from dap.report.findings import Finding, Histogram, Point
from dap.report.origin import Origin
from dap.report.page import Contents, Page
from dap.report.table import escape, visible
from dap.runtime.progress import bars

HOSTILE = [
    "=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "a | b", "\\|", "<img src=x onerror=alert(1)>", "`code`", "**bold**",
    "_it_", "a_b", "[x](javascript:alert(1))", "![x](y)", "&lt;", "&#60;", "a\nb", "~~s~~", "[5pt]", "*", "http://x.y",
    "</script>", "[red]x[/red]", "# h", "a\\", "'quoted'", '"><script>alert(1)</script>', "<!--<script>", "]]>",
    "{{x}}", "${x}", "$title", "`${alert(1)}`", "javascript:alert(1)", "' onload='alert(1)", "a--b|c", "\u05d0\u200f",
    "<svg/onload=x>",
]  # fmt: skip
NAMES = st.sampled_from(HOSTILE) | st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=12
).filter(str.strip)


def table(name: str) -> Table:
    return Table("t", name, name, (Column(name, name), Column("x")), (Row((name, Mean(0.5, None, 1))),))


def shown(name: str) -> str:
    """White space is of no account."""
    return " ".join(name.split())


@given(NAMES)
def test_csv(name):
    heads, cells = csv.reader(io.StringIO(table(name).csv(), newline=""))
    assert cells[0].removeprefix("'") == name.removeprefix("'")
    assert cells[1] == "0.5"
    for text in (heads[0], cells[0]):
        assert text.lstrip(" ")[:1] not in ("=", "+", "-", "@", "\t", "\r") or re.fullmatch(r"[+-]?\d+(\.\d+)?", text)


@given(NAMES, st.floats(-1, 1))
def test_csv_of_an_evaluation(name, number):
    _, (shown_name, shown_number) = csv.reader(io.StringIO(_csv([{"domain": name, "difference": number}]), newline=""))
    assert shown_name.removeprefix("'") == name.removeprefix("'")
    assert shown_name.lstrip(" ")[:1] not in ("=", "+", "-", "@", "\t") or re.fullmatch(r"[+-]?\d+(\.\d+)?", shown_name)
    assert float(shown_number) == number


@given(NAMES)
def test_markdown(name):
    html = MarkdownIt("gfm-like", {"linkify": False}).render(table(name).markdown())
    assert set(re.findall(r"<(/?\w+)", html)) <= {f"{end}{tag}" for end in ("", "/") for tag in TAGS}
    (heads, cells) = (re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL) for tag in ("th", "td"))
    assert [shown(unescape(text)) for text in cells] == [shown(name), "50.0"]
    assert shown(unescape(heads[0])) == shown(f"{name}: {name}")


TAGS = ("table", "thead", "tbody", "tr", "th", "td")


@pytest.mark.parametrize("name", ["[5pt]", "*", " [x"])
def test_no_row_of_latex_is_an_option_of_the_one_before(name):
    lines = table(name).latex().splitlines()
    assert any(line.startswith("{}") for line in lines)
    assert not any(line.lstrip().startswith(("[", "*")) for line in lines)
    assert r"\caption{a b. a b}" in table("a\n\nb").latex().replace("  ", " ")


@given(NAMES)
def test_latex_makes_no_other_characters_of_a_name(name):
    text = escape(name.replace("–", "").replace("—", ""))
    assert text.isascii()
    assert not re.search(r"--|''|``|,,|[|\"](?!})|[?!]`", re.sub(r"\\[`\"]\{", "", text))  # ligatures; accents are none


@pytest.mark.parametrize(
    ("name", "latex"),
    [("a---b", "a-{}-{}-b"), ("p|q", r"p\textbar{}q"), ("''", "'{}'"), ("Ångström", r"\r{A}ngstr\"{o}m"), ("数", "?")],
)
def test_latex(name, latex):
    assert escape(name) == latex


def test_no_name_is_markup_of_the_terminal():
    with bars(quiet=True) as display:
        task = display.add_task("[red]x[/red]", total=1, note="[/nothing]")
        columns = [column for column in display.columns if isinstance(column, type(display.columns[0]))]
        assert [str(column.render(display.tasks[task])).strip() for column in columns] == ["[red]x[/red]", "[/nothing]"]


def contents(name: str) -> Contents:
    """A report in which every name is this one, and whatever a run's files may hold says so."""
    about = {"suite": name, "targets": (name,), "seed": 0}
    kept = {
        "validation": 0.5,
        "unseen": 0.25,
        "domainbed": 0.25,
        "kept": 5,
        "total": 10,
        "layers": {name: 0.5},
        "dense": f"Dense {name}",
    }
    dense = Record(name, "Dense", {name: name}, **about, wished=None, sparsity=0.0, series=f"Dense {name}", **kept)
    ours = Record(name, "DAP", {name: name}, **about, wished="0.5", sparsity=0.5, series=f"DAP {name}", **kept)
    attack = Finding("attacks", name, "1", True, 0.5, **about, series=ours.series, dense=ours.dense, wished="0.5")
    histogram = Histogram(name, ours, {"edges": [-1.0, 0.0, 1.0], "counts": [5, 5], "threshold": 0.0})
    point = Point(**about, series=ours.series, step=1, sparsity=0.5, unseen=0.5, validation=0.5)
    findings = Findings([attack], [histogram], [point])
    origin = Origin(name, name, (name,), {name: name}, True)
    return Contents([dense, ours], findings, origin, all_tables([dense, ours], [attack]))


class Parts(HTMLParser):
    """The tags of a page with the names of their attributes, the text after each tag, and the series it names."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, ...]] = [("",)]
        self.after: list[str] = [""]
        self.series: set[str | None] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.after.append("")
        self.series |= {value for name, value in attrs if name == "data-series"}

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(f"/{tag}", [])

    def handle_data(self, data: str) -> None:
        self.after[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def texts(self, tag: str) -> list[str]:
        return [text for (name, *_), text in zip(self.tags, self.after, strict=True) if name == tag]


@cache
def plain() -> Parts:
    return Parts(Page(contents("plain")).html())


UNSEEN = "a\x1b[31m\u202e\u2066\x00\x0c\udcffb"


@example(UNSEEN)
@example(" ".join(HOSTILE))
@settings(max_examples=settings().max_examples // 8)
@given(st.lists(NAMES, min_size=1, max_size=8).map("".join))
def test_page(name):
    page = Parts(Page(contents(name)).html())
    seen = visible(name)
    assert page.tags == plain().tags
    assert page.series - {""} == {f"DAP {seen}", f"Dense {seen}"}
    assert {seen} == {*page.texts("title"), *page.texts("h1")}
    assert page.texts("h4")[0] == f"{seen}, unseen domains"
    data, *scripts = page.texts("script")
    assert scripts == plain().texts("script")[1:]
    rows = [row for chart in json.loads(data)["charts"].values() for rows in chart["datasets"].values() for row in rows]
    assert {row["series"] for row in rows if "series" in row} == {f"DAP {seen}", f"Dense {seen}"}


def test_what_would_act_unseen_is_shown():
    name = UNSEEN
    for text in (table(name).csv(), table(name).markdown(), table(name).latex(), Page(contents(name)).html()):
        assert not set(text) & set(name) - set("ab[31m")
        text.encode()
    assert visible(name) == "a\ufffd[31m" + 5 * "\ufffd" + "b"
