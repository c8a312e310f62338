"""Whatever a name holds, a reader of a table sees the name and nothing else."""

import csv
import io
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dap.progress import bars
from dap.report import Column, Mean, Row, Table

HOSTILE = [
    "=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "a | b", "\\|", "<img src=x onerror=alert(1)>", "`code`", "**bold**",
    "_it_", "a_b", "[x](javascript:alert(1))", "![x](y)", "&lt;", "&#60;", "a\nb", "~~s~~", "[5pt]", "*", "http://x.y",
    "</script>", "[red]x[/red]", "# h", "a\\", "'quoted'",
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


def test_no_name_is_markup_of_the_terminal():
    with bars(quiet=True) as display:
        task = display.add_task("[red]x[/red]", total=1, note="[/nothing]")
        columns = [column for column in display.columns if isinstance(column, type(display.columns[0]))]
        assert [str(column.render(display.tasks[task])).strip() for column in columns] == ["[red]x[/red]", "[/nothing]"]
