import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from small_suites import encoded, make_folder
from torch.utils.data import TensorDataset

from dap.data import SUITES, Images, load_suite, split_suite
from dap.data.listing import Names, encode
from dap.errors import DapError


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path / "suite", {"a": {"cat": 10, "dog": 10}, "b": {"cat": 5}})
    (folder / "a/cat/3.png").write_bytes(b"")
    (folder / "a/dog/0.png").write_bytes(encoded(0, width=90, height=90)[:400])
    (folder / "a/dog/9.png").write_bytes(b"<html>404</html>")
    (folder / "b/cat/1.png").unlink()
    (folder / "b/cat/1.png").symlink_to("gone.png")
    return folder


BAD = {"a/cat/3.png", "a/dog/0.png", "a/dog/9.png", "b/cat/1.png"}


def test_pacs_by_name(shared: Path, tmp_path: Path) -> None:
    suite = load_suite("PACS", shared / "data", pixels=8, cache=False)
    assert suite.name == "PACS"
    assert {domain: len(images) for domain, images in suite.domains.items()} == SUITES["PACS"].images  # pyright: ignore
    assert list(suite.domains) == sorted(SUITES["PACS"].images)
    assert len(suite.classes) == 7


def test_digits_by_name(tmp_path: Path) -> None:
    suite = load_suite("digits", cache=tmp_path)
    assert suite.classes == tuple("0123456789")
    assert isinstance(suite.domains["plain"], TensorDataset)
    train, held_out = split_suite(suite, 0)["plain"]
    assert (len(train), len(held_out)) == (360, 89)  # pyright: ignore[reportArgumentType]


def test_benchmarks_are_as_published() -> None:
    totals = {name: sum(suite.images.values()) for name, suite in SUITES.items()}
    assert totals == {
        "PACS": 9_991, "VLCS": 10_729, "OfficeHome": 15_588, "TerraIncognita": 24_788, "DomainNet": 586_575,
        "digits": 1_797,
    }  # fmt: skip
    assert all(list(suite.images) == sorted(suite.images) for suite in SUITES.values())
    uncleaned = SUITES["DomainNet"].uncleaned
    assert uncleaned is not None
    assert sum(uncleaned.values()) == 596_006


def test_other_folders_of_a_benchmark_are_left_alone(tmp_path: Path) -> None:
    domains = {domain: {"bird": 1} for domain in SUITES["VLCS"].images}
    make_folder(tmp_path / "VLCS", {**domains, "__MACOSX": {"bird": 1}})
    assert list(load_suite("VLCS", tmp_path, pixels=8, cache=False).domains) == list(domains)


@pytest.mark.parametrize("cached", [True, False])
def test_damaged_images_stop_or_are_skipped(damaged: Path, tmp_path: Path, cached: bool) -> None:
    cache = tmp_path / "cache" if cached else False
    if cached:
        message = (
            "4 of 25 images of suite cannot be read: a/cat/3.png, a/dog/0.png, a/dog/9.png and 1 more; mend or remove"
        )
        with pytest.raises(DapError, match=message):
            load_suite(damaged, pixels=16, cache=cache)
    with pytest.warns(UserWarning, match="4 of 25 images of suite cannot be read and are left out") as caught:
        suite = load_suite(damaged, pixels=16, cache=cache, on_corrupt="skip")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    a, b = suite.domains["a"], suite.domains["b"]
    assert isinstance(a, Images)
    assert isinstance(b, Images)
    assert (len(a), len(b)) == (17, 4)
    assert {*a.skipped, *b.skipped} == BAD
    assert not BAD & {*a.names, *b.names}
    assert a.batch(torch.arange(17))[1].tolist() == [0] * 9 + [1] * 8


def test_others_keep_their_sides(damaged: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="left out"):
        ours = split_suite(load_suite(damaged, pixels=16, cache=tmp_path / "cache", on_corrupt="skip"), 0)["a"]
    for name in BAD:
        (damaged / name).unlink()
        (damaged / name).write_bytes(encoded(0))
    whole = split_suite(load_suite(damaged, pixels=16, cache=tmp_path / "cache"), 0)["a"]
    for mine, theirs in zip(ours, whole, strict=True):
        assert isinstance(mine, Images)
        assert isinstance(theirs, Images)
        assert mine.names == [name for name in theirs.names if name not in BAD]


def test_without_a_cache_a_damaged_image_stops_its_batch(damaged: Path) -> None:
    images = load_suite(damaged, pixels=16, cache=False).domains["a"]
    assert isinstance(images, Images)
    images.batch(torch.tensor([0, 1]))
    with pytest.raises(DapError, match=r"cannot read a/cat/3.png \(cannot identify .*\): mend it, remove it"):
        images.batch(torch.tensor([0, 3]))


def test_a_domain_without_any_readable_image(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "suite", {"a": {"cat": 1}, "b": {"cat": 1}})
    (folder / "b/cat/0.png").write_bytes(b"")
    with pytest.raises(DapError, match="all of 'b': mend them"):
        load_suite(folder, pixels=16, cache=tmp_path / "cache", on_corrupt="skip")


def test_whole_suites_are_silent(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "suite", {"a": {"cat": 1}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_suite(folder, pixels=16, cache=tmp_path / "cache", on_corrupt="skip")


def test_impossible_settings(tmp_path: Path) -> None:
    with pytest.raises(DapError, match="at least 1, not 0"):
        load_suite(tmp_path, pixels=0)
    with pytest.raises(DapError, match="on_corrupt is 'fail' or 'skip', not 'ignore'"):
        load_suite(tmp_path, on_corrupt="ignore")  # pyright: ignore[reportArgumentType]


def test_names_are_compact() -> None:
    texts = [f"domain/class/größe {number}.jpg" for number in range(1000)] + ["", "odd\udcff"]
    names = Names(iter(texts))
    assert list(names) == texts
    assert names[-1] == texts[-1]
    assert names[2:4] == texts[2:4]
    assert names.nbytes < 45 * len(texts)
    with pytest.raises(IndexError):
        names[len(texts)]


def test_encode_sorts_numbers_by_size_and_text_by_letter() -> None:
    assert encode(["10", "9", "10"])[0] == ("9", "10")
    assert encode([3, 1, 2])[1].tolist() == [2, 0, 1]
    names, codes = encode(["b", "10", "a"])
    assert names == ("10", "a", "b")
    assert codes.dtype == np.int32
