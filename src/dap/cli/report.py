"""dap report: what runs came to."""

from pathlib import Path
from typing import Any

_PAGE = "report.html"


def report_runs(
    runs: str,
    out: str | None = None,
    files: str | None = None,
    with_paper: bool = False,
    overlaps: bool = False,
    sparsity: str = "0.8",
    watch: bool = False,
    json: bool = False,
) -> int:
    """Show what the finished runs of a study, or one run, came to, and write a page with tables and charts.

    Example: dap report runs/digits

    Example: dap report runs/pacs --files paper/results --with-paper

    Args:
        runs: the folder of a study or of a run, or a study's file
        out: the page (default: report.html in the folder)
        files: a folder for every table (Markdown, LaTeX, CSV) and figure (SVG, PDF, PNG)
        with_paper: also show the numbers that the paper on domain-aware pruning publishes, apart from yours
        overlaps: also show how far masks agree between methods, seeds and unseen domains; it reads every mask
        sparsity: that charts of one sparsity show first, and figures show, or what is nearest
        watch: write the page again whenever a run is done, until all are
        json: print one JSON object

    Returns:
        0
    """
    from dataclasses import asdict
    from json import dumps

    from dap.runtime.files import check_file, check_folder, check_inside, check_there

    folder = _folder(runs)
    check_there(folder, "the folder of a study or of a run")
    page = Path(out) if out else folder / _PAGE
    if out:
        check_file(page)
    else:
        check_inside(folder, page)
    if files:
        check_folder(files)
    from dap.report import overview
    from dap.report.charts import charts_are_here
    from dap.report.writing import read_contents, watch_page, write_files, write_page

    options: dict[str, Any] = {"with_paper": with_paper, "overlaps": overlaps, "sparsity": sparsity}
    if watch:
        for status in watch_page(folder, page, **options):
            if not json:
                print(f"{status} {page}", flush=True)
    contents = read_contents(folder, **options)
    drawn = charts_are_here()  # without, there are tables all the same
    if drawn:
        write_page(contents, page)
    written = write_files(contents, Path(files)) if files else []
    records = contents.records
    if json:
        shown = {"records": [asdict(one) for one in records], "tables": [asdict(one) for one in contents.tables]}
        print(dumps({**shown, "page": str(page) if drawn else None, "files": written}))
        return 0
    sides = ("unseen", "validation") if all(record.unseen is not None for record in records) else ("validation",)
    for side in sides:
        table = overview(records, side)
        print(f"{table.title}\n{table.note}\n\n{table.markdown()}\n")
    if files:
        print(f"{len(written)} tables and figures are in {files}")
    print(f"the page is {page}" if drawn else "the page and figures need altair: pip install 'dap[report]'")
    return 0


def _folder(runs: str) -> Path:
    path = Path(runs)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        from dap.studies import read_study
        from dap.studies.study import FILES

        if path.absolute().parent.name == FILES:  # the copy that is kept with its runs
            return path.absolute().parent.parent
        return read_study(path).folder
    return path
