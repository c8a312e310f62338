import errno
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from build_cache import logged
from filelock import FileLock
from small_suites import encoded, make_folder, make_listing

from dap.data import cache, load_suite
from dap.data.cache import cached
from dap.data.decoding import decode
from dap.data.listing import Listing, list_files
from dap.errors import DapError

SCRIPT = Path(__file__).parent / "build_cache.py"


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    (tmp_path / "images").mkdir()
    return make_listing(tmp_path / "images", 23)


def start(tmp_path: Path, pause: float, log: str) -> subprocess.Popen[bytes]:
    arguments = [tmp_path / "images", 23, tmp_path / "cache", pause, tmp_path / log]
    return subprocess.Popen([sys.executable, SCRIPT, *map(str, arguments)])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def expect_whole(listing: Listing, store: cache.Cached) -> None:
    images, sizes = store.read(np.arange(23))
    assert store.readable.all()
    assert sizes.tolist() == [[14, 8 + row] for row in range(23)]
    for row in range(23):
        assert np.array_equal(images[row], decode(listing.open(row), store.pixels)[0])


def test_holds_what_is_decoded_and_is_built_once(listing: Listing, tmp_path: Path) -> None:
    expect_whole(listing, cached(listing, 16, tmp_path / "cache", "test"))
    again = cached(logged(listing, 0, tmp_path / "log"), 16, tmp_path / "cache", "test")
    assert not (tmp_path / "log").exists()
    expect_whole(listing, pickle.loads(pickle.dumps(again)))  # as a loader's worker gets it


def test_rows_in_any_order_and_more_than_once(listing: Listing, tmp_path: Path) -> None:
    store = cached(listing, 16, tmp_path / "cache", "test")
    images, sizes = store.read(np.array([7, 2, 7]))
    assert np.array_equal(images[0], images[2])
    assert sizes[:, 1].tolist() == [15, 10, 15]


def test_key_is_content_and_settings(listing: Listing, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = cached(listing, 16, folder, "test").folder
    assert cached(listing, 17, folder, "test").folder != first
    names = list(listing.names)
    # The same files elsewhere are the same images.
    shutil.copytree(tmp_path / "images", tmp_path / "moved")
    assert cached(list_files(tmp_path / "moved", names, listing.labels), 16, folder, "test").folder == first
    (tmp_path / "images" / names[3]).write_bytes(encoded(99, width=11))
    changed = cached(list_files(tmp_path / "images", names, listing.labels), 16, folder, "test")
    assert changed.folder != first


def test_killed_and_resumed(listing: Listing, tmp_path: Path) -> None:
    process = start(tmp_path, 0.02, "log")
    wait_for(lambda: any(file.stat().st_size >= 80 for file in (tmp_path / "cache").glob("*.partial/sizes")))
    process.kill()
    process.wait()
    assert [path.suffix for path in sorted((tmp_path / "cache").iterdir())] == [".lock", ".partial"]
    done = next((tmp_path / "cache").glob("*.partial/sizes")).stat().st_size // 8
    assert 10 <= done < 23
    # What a process leaves that dies in the middle of a write.
    with open(next((tmp_path / "cache").glob("*.partial/pixels")), "ab") as pixels:
        pixels.write(b"half an image")
    store = cached(logged(listing, 0, tmp_path / "second"), 16, tmp_path / "cache", "test")
    assert len((tmp_path / "second").read_text().split()) == 23 - done
    expect_whole(listing, store)


def test_a_file_that_is_not_handed_over_is_no_damaged_image(tmp_path: Path) -> None:
    listing = make_listing(tmp_path, 4)

    def refusing(row: int) -> object:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(DapError, match=r"cannot read 000.png \(Input/output error\): check disk and rights"):
        cached(replace(listing, open=refusing), 8, tmp_path / "cache", "images")
    assert cached(listing, 8, tmp_path / "cache", "images").readable.all()


def test_too_little_memory_is_no_damaged_image(tmp_path: Path) -> None:
    listing = make_listing(tmp_path, 4)

    def refusing(row: int) -> object:
        raise MemoryError

    with pytest.raises(DapError, match="there is not enough memory to decode 000.png: free some"):
        cached(replace(listing, open=refusing), 8, tmp_path / "cache", "images")
    assert cached(listing, 8, tmp_path / "cache", "images").readable.all()


def test_two_processes_at_once_share_the_work_of_one(listing: Listing, tmp_path: Path) -> None:
    processes = [start(tmp_path, 0.06, "log") for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(23))
    expect_whole(listing, cached(listing, 16, tmp_path / "cache", "test"))


def test_too_little_space_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "suite", {"a": {"cat": 3}, "b": {"cat": 4}})
    free = [5_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    with pytest.raises(DapError, match=r"need 5,376 bytes .* 5,000 are free: .*cache=.*DAP_CACHE"):
        load_suite(tmp_path / "suite", pixels=16, cache=tmp_path / "deep" / "cache")
    assert not (tmp_path / "deep").exists()
    free[0] = 6_000
    load_suite(tmp_path / "suite", pixels=16, cache=tmp_path / "deep" / "cache")
    free[0] = 0  # what is there needs no more space
    load_suite(tmp_path / "suite", pixels=16, cache=tmp_path / "deep" / "cache")


def test_disk_that_fills_up_on_the_way(listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "_append", full)
    with pytest.raises(DapError, match="is full .*: free some space"):
        cached(listing, 16, tmp_path / "cache", "test")
    monkeypatch.undo()
    expect_whole(listing, cached(listing, 16, tmp_path / "cache", "test"))


def test_cache_that_cannot_be_written(listing: Listing, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DapError, match="cannot write to .*cache=False"):
        cached(listing, 16, tmp_path / "file" / "cache", "test")


def test_damaged_cache_is_refused(listing: Listing, tmp_path: Path) -> None:
    store = cached(listing, 16, tmp_path / "cache", "test")
    os.truncate(store.folder / "pixels", 5000)
    with pytest.raises(DapError, match="ends too early: delete it"):
        store.read(np.array([22]))
    with pytest.raises(DapError, match="is damaged: delete it"):
        cached(listing, 16, tmp_path / "cache", "test")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("DAP_CACHE", raising=False)
    assert cache.cache_folder() == Path("/h/.cache/dap")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/dap")
    monkeypatch.setenv("DAP_CACHE", "/d")
    assert cache.cache_folder() == Path("/d")


def test_the_lock_is_given_back(listing: Listing, tmp_path: Path) -> None:
    store = cached(listing, 16, tmp_path / "cache", "test")
    with FileLock(store.folder.with_suffix(".lock"), timeout=0):
        pass
