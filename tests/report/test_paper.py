"""The published numbers, against what they say of each other."""

from statistics import fmean

import pytest

from dap.report.paper import published

EVERY = published(["PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"])


def number(cell):
    return None if cell in (None, "—") else float(cell.split(" ± ")[0])


def test_every_table_is_there_and_apart():
    assert len(EVERY) == 12
    assert all(table.name.startswith("published-") and table.title.startswith("Published: ") for table in EVERY)
    assert [table.name for table in published(["digits"])] == ["published-suites"]


@pytest.mark.parametrize("table", [table for table in EVERY if "attacks" in table.name], ids=lambda table: table.name)
def test_differences_are_those_of_the_row(table):
    for row in table.rows:
        dense, sparse, difference = (number(cell) for cell in row.cells[2:5])
        assert difference == pytest.approx(sparse - dense, abs=0.02)


def test_averages_are_those_of_the_row():
    (table,) = [table for table in EVERY if table.name == "published-suites"]
    for row in table.rows:
        assert number(row.cells[-1]) == pytest.approx(fmean(number(cell) for cell in row.cells[2:-1]), abs=0.11)


def test_the_same_number_in_two_tables():
    (main,) = [table for table in EVERY if table.name == "published-suites"]
    (pacs,) = [table for table in EVERY if table.name == "published-domains-pacs"]
    ours = {row.cells[1]: number(row.cells[2]) for row in main.rows if row.cells[0] == "DAP"}
    theirs = {row.cells[1]: number(row.cells[-1]) for row in pacs.rows if row.cells[0] == "DAP" and "%" in row.cells[1]}
    assert ours == theirs
