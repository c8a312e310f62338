"""One table, three forms."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from dap.report import Column, Difference, Mean, Row, Table, all_tables, overview
from dap.report.paper import published

TABLE = Table(
    "some",
    "A & B",
    "50 % of α",
    (Column("method"), Column("accuracy", "a_b", marked=True), Column("Δ", "a_b")),
    (
        Row(("one | two", Mean(0.5, 0.01, 3), Difference(0.1, -0.05, 0.2, 3))),
        Row(("three", Mean(0.7, 0.02, 3), None)),
        Row(("four", Mean(0.70001, 0.02, 3), "—")),
        Row(("five", None, None)),
        Row(("six", Mean(0.9, None, 1), None)),
    ),
)


def test_markdown():
    assert TABLE.markdown().splitlines() == [
        "| method | a_b: accuracy | a_b: Δ |",
        "|---|---|---|",
        "| one \\| two | <u>50.0 ± 1.0</u> | +10.0 [−5.0, +20.0] |",
        "| three | **70.0 ± 2.0** | – |",
        "| four | **70.0 ± 2.0** | — |",  # it looks the same
        "| five | – | – |",
        "| six | 90.0 | – |",  # of fewer seeds
    ]


def test_csv_has_every_number():
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert rows[0] == {
        "method": "one | two", "a_b: accuracy": "0.5", "a_b: accuracy std": "0.01",
        "a_b: accuracy stderr": str(0.01 / 3**0.5),
        "a_b: accuracy seeds": "3",
        "a_b: accuracy remark": "", "a_b: Δ": "0.1", "a_b: Δ low": "-0.05", "a_b: Δ high": "0.2", "a_b: Δ seeds": "3",
    }  # fmt: skip
    assert rows[3]["a_b: accuracy"] == ""  # missing, not 0
    assert rows[2]["a_b: Δ"] == ""  # a dash is no number
    assert "(20 %)" in replace(TABLE, rows=(Row(("a", Mean(0.5, None, 1, remark="(20 %)"), None)),)).csv()


def test_latex():
    text = TABLE.latex()
    assert r"\caption{A \& B. 50 \% of $\alpha$}" in text
    assert r" & \multicolumn{2}{c}{a\_b} \\" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"one \textbar{} two & \underline{50.0 $\pm$ 1.0} & +10.0 [$-$5.0, +20.0] \\" in text
    assert text.count(r"\textbf{70.0 $\pm$ 2.0}") == 2
    assert text.isascii()


def test_all_of_a_study(records, findings):
    for table in all_tables(records, findings.robustness):
        rows = list(csv.reader(io.StringIO(table.csv())))
        assert len({len(row) for row in rows}) == 1
        assert len(rows) == 1 + len(table.rows) == len(table.markdown().splitlines()) - 1
        assert len(re.findall(r" \\\\$", table.latex(), re.MULTILINE)) == 1 + len(table.rows) + any(
            column.group for column in table.columns
        )
    assert overview(records).columns[1].title == "dense"


@pytest.mark.slow
def test_latex_compiles(records, findings, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex with booktabs (Debian: texlive-latex-recommended)")
    odd = replace(TABLE, name="odd", title="数字 ≥ 5", note="")
    hostile = ("[5pt]", "*", "a--b|c", '"`', "a\\", "~^{}$%&#_<>", "Malmö Łódź", "a\fb\x1b\n\nc")
    names = replace(TABLE, name="names", rows=tuple(Row((name, None, name)) for name in hostile))
    tables = [TABLE, odd, names, *all_tables(records, findings.robustness), *published(["PACS", "OfficeHome"])]
    body = "\n".join(table.latex() for table in tables)
    (tmp_path / "all.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}{body}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")
