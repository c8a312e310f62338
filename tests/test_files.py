import pytest

from dap.data import load_suite
from dap.errors import DapError
from dap.files import expanded


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
