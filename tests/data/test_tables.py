import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_suites import encoded

from dap.data import load_suite, split_suite
from dap.data.tables import list_table
from dap.errors import DapError

ROWS = [("b/1.png", "dog", "night", "g1"), ("a/0.png", "cat", "day", "g0"), ("a/é, 2.png", "dog", "day", "g1")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, (path, *_) in enumerate(ROWS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(encoded(seed))
    return tmp_path


def write(folder: Path, rows: list[tuple[object, ...]], header: str = "path,label,domain,group") -> Path:
    lines = [",".join(f'"{value}"' if "," in str(value) else str(value) for value in row) for row in rows]
    file = folder / "table.csv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return file


def write_parquet(folder: Path, **columns: list[object]) -> Path:
    arrow, parquet = (
        pytest.importorskip(name, reason="needs pyarrow: pip install 'dap[hub]'")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    parquet.write_table(arrow.table(columns), folder / "table.parquet")
    return folder / "table.parquet"


@pytest.mark.parametrize("kind", ["csv", "csv with a mark", "parquet"])
def test_table_is_read(folder: Path, kind: str) -> None:
    if kind == "parquet":
        names = ("path", "label", "domain", "group")
        file = write_parquet(folder, **dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True)))
    else:
        file = write(folder, ROWS)
        if "mark" in kind:  # as Excel writes it
            file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    contents = list_table(file)
    assert (contents.name, contents.classes, contents.group_names) == ("table", ("cat", "dog"), ("g0", "g1"))
    assert list(contents.domains) == ["day", "night"]
    day = contents.domains["day"]
    assert list(day.names) == ["a/0.png", "a/é, 2.png"]
    assert day.labels.tolist() == [0, 1]
    assert day.groups is not None
    assert day.groups.tolist() == [0, 1]


def test_loaded_and_split_by_group(folder: Path) -> None:
    suite = load_suite(write(folder, ROWS), pixels=8, cache=folder / "cache")
    inputs, labels = suite.domains["day"].batch(torch.arange(2))
    assert inputs.shape == (2, 3, 8, 8)
    assert labels.tolist() == [0, 1]
    parts = split_suite(suite, 0, holdout=0.5)
    # g1 is in both domains, and on the same side in both.
    assert ("a/é, 2.png" in parts["day"][1].names) == ("b/1.png" in parts["night"][1].names)


def test_whole_numbers_are_sorted_by_size(folder: Path) -> None:
    rows = [(path, label, 1) for (path, *_), label in zip(ROWS, (10, 2, 1), strict=True)]
    contents = list_table(write(folder, rows, "path,label,domain"))
    assert contents.classes == ("1", "2", "10")
    assert contents.domains["1"].labels.tolist() == [2, 1, 0]
    assert contents.domains["1"].groups is None


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (ROWS, "file,label,domain,group", "has no column 'path', only file, label, domain, group"),
        ([], "path,label,domain", "has no rows"),
        ([], "", "has no column 'path'"),
        ([("a/0.png", "", "day")], "path,label,domain", "has no label in row 1: fill it in"),
        ([("a/0.png", "NaN", "day")], "path,label,domain", "has no label in row 1"),
        ([("a/0.png", "cat")], "path,label,domain", "has 2 values in row 1 under 3 names: quote commas"),
        ([("a/0.png", "cat", "")], "path,label,domain", "has no domain in row 1"),
        ([*ROWS, ("b/../a/0.png", "dog", "night", "g")], "path,label,domain,group", "lists a/0.png more than once"),
        ([("c/0.png", "cat", "day")], "path,label,domain", "c/0.png not found under .*: correct the paths"),
        ([("../0.png", "cat", "day")], "path,label,domain", "points at ../0.png, which is not in its folder"),
        ([("a/../../0.png", "cat", "day")], "path,label,domain", "points at a/../../0.png"),
        ([("/etc/hostname", "cat", "day")], "path,label,domain", "points at /etc/hostname, .* give root="),
    ],
)
def test_faults_are_named(folder: Path, rows: list[tuple[str, ...]], header: str, message: str) -> None:
    with pytest.raises(DapError, match=message) as caught:
        list_table(write(folder, rows, header))
    assert "\n" not in str(caught.value)


def test_absolute_paths_only_where_they_are_allowed(folder: Path) -> None:
    elsewhere = folder / "a"
    (folder / "tables").mkdir()
    file = write(folder / "tables", [(elsewhere / "0.png", "cat", "day")], "path,label,domain")
    with pytest.raises(DapError, match="give root="):
        list_table(file)
    assert np.fromfile(list_table(file, root=elsewhere).domains["day"].open(0), np.uint8).size > 0
    with pytest.raises(DapError, match="give root="):
        list_table(file, root=folder / "tables")
    assert len(list_table(write(folder, [(elsewhere / "0.png", "cat", "day")], "path,label,domain")).domains) == 1


def test_parquet_faults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [row[0] for row in ROWS]
    good = {"path": paths, "domain": ["a"] * 3}
    for labels, message in [
        ([0.0, float("nan"), 1.0], "has the label 0.0 in row 1: use text or whole numbers"),
        ([float("nan")] * 3, "has no label in row 1"),
        (["cat", None, "dog"], "has no label in row 2"),
    ]:
        with pytest.raises(DapError, match=message):
            list_table(write_parquet(folder, **good, label=labels))
    (folder / "table.parquet").write_bytes(b"no table")
    with pytest.raises(DapError, match="is no Parquet table"):
        list_table(folder / "table.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DapError, match=r"needs pyarrow: pip install 'dap\[hub\]'"):
        list_table(folder / "table.parquet")


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(bytes(range(128, 256)))
    with pytest.raises(DapError, match="binary.csv is no CSV table .*: write it anew, in UTF-8"):
        list_table(tmp_path / "binary.csv")
    with pytest.raises(DapError, match="no table .*none.csv"):
        list_table(tmp_path / "none.csv")


def test_csv_needs_neither_pandas_nor_pyarrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(list_table(write(folder, ROWS)).domains) == 2


def test_real_images(shared: Path, tmp_path: Path) -> None:
    root = shared / "data" / "PACS"
    files = [file for domain in ("photo", "sketch") for file in sorted((root / domain).glob("*/*.jpg"))[::300]]
    rows = [(file, file.parent.name, file.parents[1].name) for file in files]
    suite = load_suite(write(tmp_path, rows, "path,label,domain"), root=root, pixels=32, cache=tmp_path / "cache")
    assert sum(map(len, suite.domains.values())) == len(files)  # pyright: ignore[reportArgumentType]
    assert suite.domains["photo"][0][0].shape == (3, 32, 32)
