"""A report as files: the page, and every table and figure on its own."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dap.errors import DapError
from dap.report.charts import charts_are_here, write_figures
from dap.report.figures import all_figures
from dap.report.findings import read_findings
from dap.report.oracles import oracle_table, read_oracles
from dap.report.origin import origin_of
from dap.report.overlaps import overlap_table, read_overlaps
from dap.report.page import Contents, Page, look_of
from dap.report.paper import published
from dap.report.records import read_records, run_places
from dap.report.tables import all_tables
from dap.runtime.files import write_atomic
from dap.specs.file_names import RESULT

_PAUSE = 5.0  # seconds between looks at a study that runs


def read_contents(folder: Path, with_paper: bool = False, overlaps: bool = False, sparsity: str = "0.8") -> Contents:
    """What there is to show of the runs in `folder`; charts that show one sparsity begin with `sparsity`."""
    records = read_records(folder)
    findings = read_findings(folder, records)
    tables = all_tables(records, findings.robustness)
    if overlaps and (agreement := overlap_table(read_overlaps(folder, records))):
        tables.append(agreement)
    if yardstick := oracle_table([*read_oracles(folder, records)]):
        tables.append(yardstick)
    suites = {record.suite for record in records}
    others = published(suites) if with_paper else []
    return Contents(records, findings, origin_of(folder), tables, others, sparsity)


def write_page(contents: Contents, file: Path, refresh: int | None = None) -> None:
    write_atomic(file, Page(contents, refresh).html().encode())


def write_files(contents: Contents, folder: Path) -> list[str]:
    """Tables as Markdown, LaTeX and CSV, figures as SVG, PDF and PNG."""
    files = []
    for table in [*contents.tables, *contents.published, *contents.origin.tables]:
        for ending, text in {"md": f"{table.markdown()}\n", "tex": table.latex(), "csv": table.csv()}.items():
            write_atomic(folder / f"{table.name}.{ending}", text.encode(), inside=folder)
            files.append(f"{table.name}.{ending}")
    if not charts_are_here():
        return files
    look = look_of(contents)
    return files + write_figures(all_figures(contents.records, contents.findings, look), look, folder)


def watch_page(folder: Path, file: Path, pause: float = _PAUSE, **options: Any) -> Iterator[str]:
    """Write the page whenever something is done, until all is; each time, how far it is.

    `options` are those of `read_contents`.
    """
    if not folder.is_dir():
        raise DapError(f"there is no folder {folder}: give that of a study or of a run")
    seen = None
    while True:
        origin = origin_of(folder)
        now = {path: path.stat().st_mtime_ns for path in folder.glob(f"**/{RESULT}")}
        if now != seen and any((place / RESULT).is_file() for place in run_places(folder)):
            write_page(read_contents(folder, **options), file, None if origin.finished else max(1, round(pause)))
            seen = now
            yield origin.status
        if origin.finished:
            return
        time.sleep(pause)
