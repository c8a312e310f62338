"""Full and read-only disks, real ones: small file systems that only the commands under test see."""

import subprocess
import sys
from pathlib import Path

import pytest

from dap.studies.local import run_locally
from small_studies import THREE, contents, make_study

DAP = Path(sys.executable).with_name("dap")


@pytest.fixture
def mounted(tmp_path):
    """Runs a script that may mount file systems of its own on $DISK."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this system does not let users mount file systems of their own")
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(script: str) -> subprocess.CompletedProcess[str]:
        prelude = f"DISK={disk}; DAP={DAP}; cd {tmp_path}\n"
        return subprocess.run(["unshare", "-rm", "bash", "-uc", prelude + script], capture_output=True, text=True)

    return run


def test_a_full_disk_and_then_a_larger_one(mounted, tmp_path):
    """What fits is done and stays, the rest says why not, and goes on when there is room: to the same results."""
    (tmp_path / "study.yaml").write_text(THREE)
    done = mounted(
        """
        mount -t tmpfs -o size=8m tmpfs $DISK
        $DAP study run study.yaml --out $DISK/runs --workers 1; echo "exit $?"
        find $DISK -name '.*.????????' | wc -l
        ls $DISK/runs/*/result.json | wc -l
        mount -o remount,size=100m $DISK
        $DAP study retry study.yaml --out $DISK/runs --workers 1; echo "exit $?"
        cp -r $DISK/runs copy
        """
    )
    lines = done.stdout.splitlines()
    first, second = (place for place, line in enumerate(lines) if line.startswith("exit"))
    assert lines[first] == "exit 1"
    assert any("failed" in line and "No space left on device" in line for line in lines[:first]), done.stdout
    left_over, results = map(int, lines[first + 1 : first + 3])
    assert left_over == 0
    assert 1 <= results < 3
    assert lines[second] == "exit 0", done.stdout + done.stderr
    undisturbed = make_study(tmp_path / "undisturbed", THREE)
    run_locally(undisturbed, list(undisturbed.runs), workers=1)
    assert len(contents(undisturbed)) == 8
    (tmp_path / "again").mkdir()
    (tmp_path / "copy").rename(tmp_path / "again" / "runs")
    assert contents(make_study(tmp_path / "again", THREE)) == contents(undisturbed)


def test_a_read_only_disk(mounted, tmp_path):
    (tmp_path / "study.yaml").write_text(THREE)
    train = "train digits --targets plain --backbone small_resnet --weights null --train.freeze-norms false"
    done = mounted(
        f"""
        mount -t tmpfs -o ro tmpfs $DISK
        $DAP {train} --train.steps 2 --out $DISK/run; echo "exit $?"
        $DAP study run study.yaml --out $DISK/runs --workers 1 --json; echo "exit $?"
        """
    )
    assert f"dap: {tmp_path}/disk/run: Read-only file system\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == ["exit 1", "exit 1"]
