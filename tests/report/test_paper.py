"""The published numbers, against the tables of the paper's source."""

import re
from collections.abc import Iterator

import pytest

from dap.report.paper import published
from pacs import SHARED

PAPER = SHARED / "paper" / "domain-aware-pruning.tex"
EVERY = {table.name: table for table in published(["PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"])}
LABELS = {"terraincognita": "terra"}
TWO_SUITES = ("pacs", "officehome")


def plain(cell: str) -> str:
    """A cell of LaTeX as a reader sees it.

    >>> plain(r"\\textbf{88.1\\;{\\tiny$\\pm$0.1}}")
    '88.1 ± 0.1'
    """
    cell = re.sub(r"\\(rowcolor|cite|cmidrule|textcolor)\{[^}]*\}|\\multirow\{\d+\}\{\*\}", "", cell)
    cell = re.sub(r"\$\^\{?\\dagger\}?\$", "", cell)
    cell = cell.replace(r"\%", " %").replace(r"$\pm$", " ± ").replace("---", "—")
    return " ".join(re.sub(r"\\[A-Za-z]+|\\;|[{}$~]", "", cell).split())


def rows_of(label: str) -> Iterator[list[str]]:
    """The rows of a table below its head; an empty first cell is the one above."""
    if not PAPER.is_file():
        pytest.skip("needs the paper's source: set DAP_SHARED to the folder that holds it")
    (table,) = [part for part in PAPER.read_text().split(r"\begin{table") if rf"\label{{tab:{label}}}" in part]
    first = ""
    for line in table.split(r"\midrule", 1)[1].split(r"\bottomrule")[0].split(r"\\"):
        cells = [plain(cell) for cell in line.split("&")]
        if len(cells) > 1:
            first = cells[0] or first
            yield [first, *cells[1:]]


def ours(name: str) -> list[list[str]]:
    return [[cell or "" for cell in row.cells] for row in EVERY[name].rows]


def test_every_table_is_there_and_apart():
    assert len(EVERY) == 12
    assert all(name.startswith("published-") and table.title.startswith("Published: ") for name, table in EVERY.items())
    assert [table.name for table in published(["digits"])] == ["published-suites"]


def test_methods_on_suites():
    assert ours("published-suites") == list(rows_of("main_results"))


@pytest.mark.parametrize("suite", ["pacs", "vlcs", "officehome", "terraincognita", "domainnet"])
def test_each_unseen_domain(suite):
    renamed = {"Best": "selected", "(Sparsity)": "(its sparsity)"}
    theirs = [
        ["DAP", renamed.get(first, first), *cells] if "%" in first or first in renamed else [first, "0 %", *cells]
        for first, *cells in rows_of(f"{LABELS.get(suite, suite)}_detailed")
    ]
    assert ours(f"published-domains-{suite}") == theirs


@pytest.mark.parametrize("suite", TWO_SUITES)
def test_on_other_objectives(suite):
    theirs = [
        [method.removesuffix(" (Dense)"), sparsity, accuracy, gain or "—"]
        for name, method, sparsity, accuracy, gain in rows_of("plug_and_play")
        if name.lower() == suite
    ]
    assert ours(f"published-plug-and-play-{suite}") == theirs


@pytest.mark.parametrize("suite", TWO_SUITES)
def test_other_pruning_methods(suite):
    first = 2 + 2 * TWO_SUITES.index(suite)
    theirs = [
        [cells[0].removesuffix(" (Ours)"), cells[1], *cells[first : first + 2]]
        for cells in rows_of("pruning_comparison")
        if cells[first] != "—"
    ]
    assert ours(f"published-pruning-{suite}") == theirs


@pytest.mark.parametrize("suite", TWO_SUITES)
def test_under_attack(suite):
    theirs = [
        [attack.lower(), severity.replace("—", "0"), *sources, *unseen]
        for attack, severity, *cells in rows_of(f"robustness_{suite}")
        for sources, unseen in [(cells[::2], cells[1::2])]
    ]
    assert ours(f"published-attacks-{suite}") == theirs
