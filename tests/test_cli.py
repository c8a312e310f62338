import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from dap.cli import main


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for domain in ("art", "photo"):
        (tmp_path / "suite" / domain / "cat").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "suite" / domain / "cat" / "0.png")
    return tmp_path / "suite"


def usage_error(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["data", "check", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom dap.cli import main\n"
        f"try: main({arguments})\nexcept SystemExit as stop: code = stop.code\n"
        "heavy = {'torch', 'numpy', 'PIL', 'datasets'} & set(sys.modules)\nsys.exit(code or ' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: dap" in done.stdout


def test_check_of_a_whole_suite(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(suite)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "suite is whole"
    assert "art                        1 images, 0 unreadable" in out
    assert err == ""


def test_check_of_a_damaged_suite(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (suite / "photo" / "cat" / "0.png").write_bytes(b"")
    assert main(["data", "check", str(suite)]) == 1
    assert "- photo/cat/0.png cannot be read" in capsys.readouterr().out
    assert main(["data", "check", str(suite), "--quick"]) == 0
    assert "1 images, not decoded" in capsys.readouterr().out


def test_json(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (suite / "photo" / "cat" / "0.png").write_bytes(b"")
    assert main(["data", "check", str(suite), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["whole"] is False
    assert found["domains"]["art"]["images"] == 1
    assert list(found["domains"]["photo"]["unreadable"]) == ["photo/cat/0.png"]


def test_named_suite_in_a_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "PACS", "--root", str(tmp_path)]) == 1
    assert "DomainBed" in capsys.readouterr().out


def test_user_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "/nothing/here"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dap: '/nothing/here' is no folder and no suite")
    assert err.count("\n") == 1


def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_error() == 2
    assert usage_error("dance") == 2
    assert usage_error("data", "check") == 2
    assert usage_error("data", "check", "PACS", "--rot", "x") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dap.data.checking.check_suite", interrupted)
    assert main(["data", "check", "PACS"]) == 130
    assert capsys.readouterr().err == "dap: interrupted\n"


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("dap")
    if not command.exists():
        pytest.skip("installed without its command")
    done = subprocess.run([command, "data", "check", "/nothing/here"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
