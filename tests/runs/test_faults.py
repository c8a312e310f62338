"""Full and read-only disks, real ones: small file systems that only the commands under test see."""

import subprocess
import sys
from pathlib import Path

import pytest

from dap.cli import main
from small_studies import THREE, hashed

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


TRAIN = "train digits --targets plain --backbone small_resnet --weights null --train.freeze-norms false --train.steps 3"


def test_a_full_disk_and_then_a_larger_one(mounted, tmp_path):
    """It says so, leaves nothing half written, keeps what there was, and with more room ends with the same bits."""
    done = mounted(
        f"""
        mount -t tmpfs -o size=4m tmpfs $DISK
        echo precious > $DISK/other
        $DAP {TRAIN} --out $DISK/run; echo "exit $?"
        find $DISK -name '.*.????????' | wc -l
        ls $DISK/run; cat $DISK/other
        mount -o remount,size=100m $DISK
        $DAP {TRAIN} --out $DISK/run --json > /dev/null; echo "exit $?"
        cp -r $DISK/run copy
        """
    )
    assert done.stdout.splitlines() == [
        "exit 1", "0", "environment.json", "failure.json", "images.json", "metrics.jsonl", "spec.json", "precious",
        "exit 0",
    ], done.stderr  # fmt: skip
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    assert main([*TRAIN.split(), "--out", str(tmp_path / "undisturbed"), "--json"]) == 0
    for name in ("result.json", "model.safetensors"):
        assert hashed(tmp_path / "copy" / name) == hashed(tmp_path / "undisturbed" / name)


def test_a_read_only_disk(mounted, tmp_path):
    """Nothing is computed that could not be kept."""
    (tmp_path / "study.yaml").write_text(THREE)
    done = mounted(
        f"""
        mount -t tmpfs -o ro tmpfs $DISK
        $DAP {TRAIN} --out $DISK/run; echo "exit $?"
        $DAP study run study.yaml --out $DISK/run --workers 1 --json; echo "exit $?"
        $DAP evaluate . --out $DISK/run; echo "exit $?"
        $DAP export . --out $DISK/run; echo "exit $?"
        $DAP report . --out $DISK/run; echo "exit $?"
        """
    )
    line = f"dap: {tmp_path}/disk cannot be written to: choose another place for {tmp_path}/disk/run"
    assert done.stderr.splitlines() == [line] * 5
    assert done.stdout.splitlines() == ["exit 1"] * 5


def test_a_report_on_a_full_disk_names_the_file(mounted, tmp_path):
    run = Path(__file__).parents[2] / "docs" / "results" / "pacs" / "prune-0220f95d1a50"
    done = mounted(
        f"""
        mount -t tmpfs -o size=64k tmpfs $DISK
        $DAP report {run} --out $DISK/page.html; echo "exit $?"
        find $DISK -name '.*.????????' | wc -l
        """
    )
    assert done.stderr == f"dap: {tmp_path}/disk/page.html: No space left on device\n"
    assert done.stdout.splitlines() == ["exit 1", "0"]
