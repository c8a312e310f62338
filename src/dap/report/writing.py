"""A report as files: the page, and every table and figure on its own."""

import time
from collections.abc import Iterator
from pathlib import Path

from dap.files import write_atomic
from dap.report.charts import write_figures
from dap.report.figures import all_figures
from dap.report.findings import Findings, read_findings
from dap.report.origin import origin_of
from dap.report.page import Page, look_of
from dap.report.paper import published
from dap.report.records import Record, read_records
from dap.report.tables import all_tables
from dap.runs.folder import RESULT

PAGE = "report.html"
_PAUSE = 5.0  # seconds between looks at a study that runs


def write_page(
    folder: Path, file: Path, with_paper: bool = False, refresh: int | None = None
) -> tuple[list[Record], Findings]:
    """What runs came to, on a page; and what it was made from."""
    records = read_records(folder)
    findings = read_findings(folder, records)
    tables = published({record.suite for record in records}) if with_paper else ()
    write_atomic(file, Page(records, findings, origin_of(folder), tables, refresh).html().encode())
    return records, findings


def write_files(records: list[Record], findings: Findings, folder: Path, with_paper: bool = False) -> list[str]:
    """Tables as Markdown, LaTeX and CSV, figures as SVG, PDF and PNG."""
    tables = all_tables(records, findings.robustness)
    if with_paper:
        tables += published({record.suite for record in records})
    files = []
    for table in tables:
        for ending, text in {"md": f"{table.markdown()}\n", "tex": table.latex(), "csv": table.csv()}.items():
            write_atomic(folder / f"{table.name}.{ending}", text.encode())
            files.append(f"{table.name}.{ending}")
    look = look_of(records)
    return files + write_figures(all_figures(records, findings, look), look, folder)


def watch_page(folder: Path, file: Path, with_paper: bool = False, pause: float = _PAUSE) -> Iterator[str]:
    """Write the page whenever something is done, until all is; each time, how far it is."""
    seen = None
    while True:
        origin = origin_of(folder)
        now = {path: path.stat().st_mtime_ns for path in folder.glob(f"**/{RESULT}")}
        if now != seen and any(path.parent.parent == folder for path in now):
            write_page(folder, file, with_paper, None if origin.finished else max(1, round(pause)))
            seen = now
            yield origin.status
        if origin.finished:
            return
        time.sleep(pause)
