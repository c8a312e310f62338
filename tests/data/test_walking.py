"""Links, loops and things that are no files: what is listed of them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from small_suites import encoded, make_folder

from dap.cli import main
from dap.data.checking import check_suite
from dap.data.decoding import decode
from dap.data.folders import list_folder
from dap.data.suites import list_suite, load_suite
from dap.errors import DapError


@pytest.fixture(autouse=True)
def _in_time():
    """A test that waits for a FIFO fails."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "suite", {"art": {"cat": 2, "dog": 1}, "photo": {"cat": 1, "dog": 3}})


def counts(folder: Path) -> dict[str, int]:
    return {domain: len(listing) for domain, listing in list_folder(folder).domains.items()}


def names(folder: Path) -> list[str]:
    return [name for listing in list_folder(folder).domains.values() for name in listing.names]


@pytest.mark.parametrize("target", [".", "..", "../..", "../../..", "/"])
@pytest.mark.parametrize("place", ["art/cat/loop", "art/loop", "loop"])
def test_a_link_to_a_folder_above_is_skipped(suite, place, target):
    before = names(suite)
    os.symlink(target, suite / place)
    assert names(suite) == before
    assert list_folder(suite).notes == (f"skipped, a link to a folder above: {place}",)


def test_two_links_that_lead_to_each_other(suite, tmp_path):
    before = names(suite)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "9.png").write_bytes(encoded(9))
    os.symlink(tmp_path / "other", suite / "art/cat/away")
    os.symlink(suite, tmp_path / "other" / "back")
    assert sorted(names(suite)) == sorted([*before, "art/cat/away/9.png"])
    assert "art/cat/away/back" in list_folder(suite).notes[0]


def test_a_link_to_itself_is_a_missing_image(suite):
    os.symlink("me.png", suite / "art/cat/me.png")
    os.symlink("nowhere.png", suite / "art/cat/gone.png")
    assert counts(suite) == {"art": 5, "photo": 4}
    assert list(check_suite(suite).domains["art"].unreadable) == ["art/cat/gone.png", "art/cat/me.png"]


def test_domains_classes_and_images_may_be_links(suite, tmp_path):
    """As with a data set of which parts are on another disk."""
    before, labels = names(suite), list_folder(suite).domains["photo"].labels.tolist()
    suite.rename(tmp_path / "disk")
    (suite / "photo").mkdir(parents=True)
    os.symlink(tmp_path / "disk/art", suite / "art")
    os.symlink("../../disk/photo/cat", suite / "photo/cat")
    (suite / "photo/dog").mkdir()
    for number in range(3):
        os.symlink(tmp_path / f"disk/photo/dog/{number}.png", suite / f"photo/dog/{number}.png")
    contents = list_suite(suite)
    assert names(suite) == before
    assert contents.domains["photo"].labels.tolist() == labels
    assert contents.notes == ()
    assert check_suite(suite).whole
    os.symlink(suite, tmp_path / "short")
    assert names(tmp_path / "short") == before


def test_an_image_is_listed_once_at_its_own_place(suite):
    before = names(suite)
    os.symlink("../dog", suite / "art/cat/more")
    os.symlink("../../photo/dog/0.png", suite / "art/cat/0-link.png")
    os.symlink("photo", suite / "again")
    contents = list_folder(suite)
    assert [name for name in names(suite) if not name.startswith("again")] == before
    assert len(contents.domains["again"]) == 0
    skipped = "again/cat, again/dog, art/cat/0-link.png and 1 more"
    assert contents.notes == (f"skipped, a link to images listed elsewhere: {skipped}",)


@pytest.mark.parametrize("order", [("a-link.png", "pool"), ("pool", "z-link.png"), ("pool", "z-pool")])
def test_of_two_links_to_one_image_the_first_counts(suite, tmp_path, order):
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/9.png").write_bytes(encoded(9))
    for name in order:
        os.symlink(tmp_path / ("pool/9.png" if name.endswith(".png") else "pool"), suite / "art/cat" / name)
    assert counts(suite) == {"art": 4, "photo": 4}
    assert len(list_folder(suite).notes) == 1


def test_a_link_to_an_image_that_is_listed_nowhere_else_counts(suite):
    (suite / ".pool").mkdir()
    (suite / ".pool/9.png").write_bytes(encoded(9))
    (suite / "loose.png").write_bytes(encoded(10))
    os.symlink("../../.pool/9.png", suite / "art/cat/9.png")
    os.symlink("../../loose.png", suite / "art/cat/10.png")
    assert counts(suite) == {"art": 5, "photo": 4}
    os.link(suite / "art/cat/0.png", suite / "art/cat/hard.png")  # a file of its own
    assert counts(suite) == {"art": 6, "photo": 4}


@pytest.mark.skipif(sys.platform == "win32", reason="has no FIFOs")
def test_what_is_no_file_is_not_read(suite, tmp_path, capsys):
    before = names(suite)
    os.mkfifo(suite / "art/cat/pipe.png")
    os.symlink("/dev/zero", suite / "art/cat/zero.png")
    os.symlink("../../art/cat/pipe.png", suite / "photo/dog/to-pipe.jpg")
    with socket.socket(socket.AF_UNIX) as end:
        before_here = os.getcwd()
        os.chdir(suite / "photo/cat")  # names of sockets are short
        try:
            end.bind("socket.png")
        finally:
            os.chdir(before_here)
    assert names(suite) == before
    assert main(["data", "check", str(suite)]) == 0
    shown = "art/cat/pipe.png, art/cat/zero.png, photo/cat/socket.png and 1 more"
    assert f"- skipped, not a regular file: {shown}\n" in capsys.readouterr().out
    assert len(load_suite(suite, pixels=8, cache=False).domains["art"]) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="has no FIFOs")
def test_a_fifo_is_refused_wherever_an_image_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DapError, match="not a regular file"):
        decode(tmp_path / "pipe.png", 8)
    (tmp_path / "table.csv").write_text("path,label,domain\npipe.png,cat,art\n")
    with pytest.raises(DapError, match=r"pipe\.png under .*: not a regular file"):
        list_suite(tmp_path / "table.csv")
    program = f"from dap.cli.predict import _files; _files([{str(tmp_path / 'pipe.png')!r}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pipe.png is not a regular file" in done.stderr


def test_a_table_lists_an_image_once_whatever_it_is_called(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/0.png").write_bytes(encoded(0))
    os.symlink("images", tmp_path / "again")
    os.symlink("images/0.png", tmp_path / "0.png")
    for other in ("again/0.png", "0.png"):
        (tmp_path / "table.csv").write_text(f"path,label,domain\nimages/0.png,cat,art\n{other},cat,photo\n")
        with pytest.raises(DapError, match=r"images/0\.png more than once"):
            list_suite(tmp_path / "table.csv")
