"""A suite that is a table: one row per image with its path, label, domain and, if need be, group."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from dap.data.listing import Contents, by_domain, encode, list_files, some
from dap.errors import DapError

COLUMNS = ("path", "label", "domain")
Columns = dict[str, Sequence[object]]


def list_table(file: Path, root: Path | None = None) -> Contents:
    """What the CSV or Parquet `file` lists. Paths are relative to its folder, or absolute there or in `root`."""
    if not file.is_file():
        raise DapError(f"no table {file}: give the path of a .csv or .parquet file")
    columns = _parquet(file) if file.suffix == ".parquet" else _csv(file)
    if missing := [column for column in COLUMNS if column not in columns]:
        raise DapError(
            f"{file} has no column {missing[0]!r}, only {', '.join(columns)}: name its columns path,label,domain"
        )
    if not columns["path"]:
        raise DapError(f"{file} has no rows: list at least one image")
    _refuse_gaps(file, columns)
    paths = [_inside(str(path), file, root) for path in columns["path"]]
    _refuse_duplicates(file, paths)
    _refuse_duplicates(file, _resolved(file.parent, paths))
    classes, labels = encode(columns["label"])
    group_names, groups = encode(columns["group"]) if "group" in columns else ((), None)
    listings = {
        domain: list_files(
            file.parent, [paths[row] for row in rows], labels[rows], None if groups is None else groups[rows]
        )
        for domain, rows in by_domain(columns["domain"])
    }
    return Contents(file.stem, classes, listings, group_names)


def _csv(file: Path) -> Columns:
    try:
        with open(file, newline="", encoding="utf-8-sig") as text:
            header, *rows = [row for row in csv.reader(text) if row] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DapError(f"{file} is no CSV table ({error}): write it anew, in UTF-8") from None
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DapError(f"{file} has {len(row)} values in row {number} under {len(header)} names: quote commas")
    return {name.strip(): [row[place] for row in rows] for place, name in enumerate(header)}


def _parquet(file: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DapError(f"reading {file} needs pyarrow: pip install 'dap[hub]', or give a .csv") from None
    try:
        table = parquet.read_table(file)
    except (ArrowException, OSError) as error:
        raise DapError(f"{file} is no Parquet table ({str(error).splitlines()[0]}): write it anew") from None
    return {name: table[name].to_pylist() for name in table.column_names if name in (*COLUMNS, "group")}


def _refuse_gaps(file: Path, columns: Columns) -> None:
    for name in (*COLUMNS, "group"):
        for row, value in enumerate(columns.get(name, ()), 1):
            if value is None or str(value).strip().lower() in ("", "nan"):
                raise DapError(f"{file} has no {name} in row {row}: fill it in or remove the row")
            if isinstance(value, float):
                raise DapError(f"{file} has the {name} {value} in row {row}: use text or whole numbers")


def _refuse_duplicates(file: Path, paths: Sequence[str]) -> None:
    seen: set[str] = set()
    # Adds each path while looking for it: `add` gives nothing, which counts as false.
    again = [path for path in paths if path in seen or seen.add(path)]
    if again:
        raise DapError(f"{file} lists {some(again)} more than once: an image in both parts of a split is no test")


def _resolved(base: Path, paths: Sequence[str]) -> list[str]:
    """Where links lead: two names of one image are one image."""
    folders = {folder: os.path.realpath(base / folder) for folder in {os.path.dirname(path) for path in paths}}
    places = [os.path.join(folders[os.path.dirname(path)], os.path.basename(path)) for path in paths]
    return [os.path.realpath(place) if os.path.islink(place) else place for place in places]


def _inside(path: str, file: Path, root: Path | None) -> str:
    """The path as it is joined to the table's folder, if it stays in there or in `root`."""
    folder = os.path.abspath(file.parent)
    whole = os.path.normpath(os.path.join(folder, path))
    if whole.startswith(os.path.join(folder, "")):
        return os.path.relpath(whole, folder)
    if os.path.isabs(path) and root is not None and whole.startswith(os.path.join(os.path.abspath(root), "")):
        return whole
    raise DapError(
        f"{file} points at {path}, which is not in its folder: move it there, or give root= the folder it is in"
    )
