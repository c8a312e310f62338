"""Runs that are ended at their writes and resumed leave the files of runs that were left alone."""

import subprocess
import sys
from pathlib import Path

import pytest


def sweep(*arguments: str) -> str:
    """In a process of its own: it forks, which torch's threads in this one would not survive."""
    script = Path(__file__).parents[1] / "kill_points.py"
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout


def test_each_kind_of_file_before_and_after():
    assert sweep("--some").endswith("kills, no file differs\n")


@pytest.mark.slow
def test_every_write():
    assert sweep().endswith("kills, no file differs\n")
