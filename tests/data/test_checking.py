from pathlib import Path

import pytest
from small_suites import encoded, make_folder

from dap.data import SUITES
from dap.data.checking import check_suite
from dap.specs.suites import Benchmark


def test_pacs_is_whole(shared: Path) -> None:
    check = check_suite("PACS", shared / "data", quick=True)
    assert check.whole
    assert {domain: found.images for domain, found in check.domains.items()} == SUITES["PACS"].images


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path: Path) -> None:
    make_folder(tmp_path / "PACS", {"photo": {"dog": 2, "cat": 1}, "sketch": {"dog": 1, "cat": 0}})
    check = check_suite("PACS", tmp_path)
    assert not check.whole
    assert list(check.domains) == ["art_painting", "cartoon", "photo", "sketch"]
    text = "\n".join(check.problems)
    assert "art_painting has 0 images, not 2048" in text
    assert "photo has 3 images, not 1670" in text
    assert "there are 2 classes, not 7" in text
    assert "domainbed/scripts/download.py" in text
    assert str(tmp_path / "PACS") in text
    assert check.notes == ["sketch has no images of cat"]


def test_nothing_there_is_a_check_and_no_error(tmp_path: Path) -> None:
    check = check_suite("DomainNet", tmp_path)
    assert sum(found.images for found in check.domains.values()) == 0
    assert "Moment Matching" in check.problems[-1]


def test_unreadable_files_are_named_with_the_reason(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "mine", {"a": {"cat": 2}, "b": {"cat": 1}})
    (folder / "a/cat/1.png").write_bytes(encoded(0)[:60])
    check = check_suite(folder)
    assert len(check.problems) == 1
    assert check.problems[0].startswith("a/cat/1.png cannot be read: ")
    assert list(check.domains["a"].unreadable) == ["a/cat/1.png"]
    assert check_suite(folder, quick=True).whole


def test_shared_groups_are_noted(tmp_path: Path) -> None:
    lines = ["path,label,domain,group"]
    for number, (domain, group) in enumerate([("a", "x"), ("a", "y"), ("b", "y"), ("b", "z")]):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
        lines.append(f"{number}.png,cat,{domain},{group}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    check = check_suite(tmp_path / "table.csv")
    assert check.whole
    assert check.notes == ["1 groups are in more than one domain: y"]


def test_both_editions_of_a_benchmark_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "tiny", Benchmark("tiny", {"a": 1, "b": 1}, 1, "nowhere", {"a": 3, "b": 1}))
    make_folder(tmp_path / "tiny", {"a": {"cat": 3}, "b": {"cat": 1}})
    check = check_suite("tiny", tmp_path)
    assert check.whole
    assert check.notes == ["a still has the 2 duplicates that DomainBed deletes: results will differ"]


def test_digits_are_whole() -> None:
    assert check_suite("digits").whole
