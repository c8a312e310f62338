import os

import pytest

from dap.data import load_suite
from dap.errors import DapError
from dap.runtime.files import expanded, write_atomic


def test_names_with_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("DAP_THERE", str(tmp_path))
    monkeypatch.delenv("DAP_ABSENT", raising=False)
    assert expanded("$DAP_THERE/a") == expanded("${DAP_THERE}/a") == tmp_path / "a"
    with pytest.raises(DapError, match=r"\$DAP_ABSENT/a speaks of DAP_ABSENT, .*export DAP_ABSENT="):
        expanded("$DAP_ABSENT/a")
    with pytest.raises(DapError, match=f"no art_painting.* of PACS in {tmp_path}/x/PACS"):
        load_suite("PACS", "$DAP_THERE/x")
    (tmp_path / "$price").mkdir()
    monkeypatch.chdir(tmp_path)
    assert expanded("$price").name == "$price"


def test_a_link_stays_and_what_is_no_file_too(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "page").write_text("old")
    (tmp_path / "page").symlink_to(tmp_path / "real" / "page")
    write_atomic(tmp_path / "page", b"new")
    assert (tmp_path / "page").is_symlink()
    assert (tmp_path / "real" / "page").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")  # as a device
    for name in ("pipe", "real"):
        with pytest.raises(DapError, match=f"{name} is no file that can be written: give another name"):
            write_atomic(tmp_path / name, b"new")
    assert (tmp_path / "pipe").is_fifo()
