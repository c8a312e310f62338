"""A run that is ended at every one of its writes, one after the other, and resumed each time.

python tests/kill_points.py          every write of every kind of run
python tests/kill_points.py --some   for each kind of file the last time it is written, before and after
python tests/kill_points.py train    every write of one kind of run

A write is whatever changes a folder: making a file or a folder, renaming, removing, and half a line of a log. The
process ends with os._exit just before it, and so after the one before it. What a resumed run leaves is compared with
what an undisturbed one does: the same names, and the same bytes in every file but environment.json.
"""

import argparse
import atexit
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DAP_CACHE"] = tempfile.mkdtemp(prefix="dap-cache-")

import torch

from dap.config import FinetuneConfig, PruneConfig, TrainConfig
from dap.method.learn import learn_masks
from dap.runs import EvaluateSpec, PruneSpec, TrainSpec, evaluate_run, folder, prune_dense, train_dense
from dap.studies.study import keep_file
from dap.studies.work import work_on
from dap.training import finetune, train
from small_studies import make_study, small_suite

KILLED = 9
_OTHER = re.compile(r"environment\.json(\.\w{8})?$|studies/\.")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

SUITE = {"pixels": 16, "backbone": "small_resnet", "weights": None}
DENSE = TrainSpec(str(small_suite()), ("rotated",), train=TrainConfig(5, 1e-3, 4, freeze_norms=False), **SUITE)
PRUNE = PruneConfig(steps=5, target_sparsity=0.6, batch_size=4)
STUDY = """
name: tiny
train:
  suite: digits
  target: plain
  backbone: small_resnet
  weights: null
  train: {steps: 3, batch_size: 4, freeze_norms: false, learning_rate: 0.001}
  search: {trials: 2}
prune:
  - {method: dap, sparsities: [0.5], watch_every: 1, prune: {steps: 3, batch_size: 4, target_sparsity: 0.6}}
evaluate: {attacks: [fgsm], severities: [1, 2], images: 2}
"""


def train_in(place: Path, base: Path) -> None:
    train_dense(DENSE, place)


def prune_in(place: Path, base: Path) -> None:
    config = PruneConfig(steps=5, target_sparsity=0.6, batch_size=4, average=0.5)
    prune_dense(PruneSpec(str(base / "dense"), "dap", (0.3, 0.5), watch_every=2, raw=True, prune=config), place)


def finetune_in(place: Path, base: Path) -> None:
    """Weights move, and rows of one stage come between those of another."""
    options: dict[str, Any] = {"finetuned": True, "recalibrated": True, "batches": 2, "prune": PRUNE}
    options["finetune"] = FinetuneConfig(steps=3)
    prune_dense(PruneSpec(str(base / "dense"), "taylor", (0.3, 0.5), **options), place)


def evaluate_in(place: Path, base: Path) -> None:
    options: dict[str, Any] = {"attacks": ("fgsm",), "severities": (1, 2), "images": 2, "interpret": True}
    evaluate_run(EvaluateSpec(str(base / "pruned"), **options), place)


def study_in(place: Path, base: Path) -> None:
    """What `dap study run` writes, and its workers."""
    study = make_study(base / "study", STUDY)
    keep_file(study, base / "study" / "study.yaml")
    for spec in study.runs.values():
        assert work_on(spec, study.folder, lambda progress: None) == ("done", "")


RUNS: dict[str, Callable[[Path, Path], None]] = {
    "train": train_in,
    "prune": prune_in,
    "finetune": finetune_in,
    "evaluate": evaluate_in,
    "study": study_in,
}


class Points:
    """The writes below a folder, in order; at one of them the process ends."""

    def __init__(self, place: Path, last: int | None = None):
        self.place, self.last, self.labels = str(place), last, list[str]()

    def watch(self) -> None:
        """In this process, for good."""
        sys.addaudithook(self._heard)
        points, begin = self, folder.Metrics.__init__

        class Torn:
            def __init__(self, file: Any):
                self.file, self.name, self.fileno, self.flush = file, file.name, file.fileno, file.flush

            def write(self, line: str) -> None:
                half = line[: len(line) // 2]
                points.reach("row metrics.jsonl", lambda: (self.file.write(half), self.file.flush()))
                self.file.write(line)

        folder.Metrics.__init__ = lambda self, file, *rest: begin(self, Torn(file), *rest)

    def reach(self, label: str, before: Callable[[], object] = lambda: None) -> None:
        self.labels.append(label)
        if len(self.labels) == self.last:
            before()
            os._exit(KILLED)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITING):
            return
        if event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        path = args[1] if event == "os.rename" else args[0]
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.place):
            self.reach(f"{event.removeprefix('os.')} {kind_of(Path(path))}")


def kind_of(path: Path) -> str:
    """A file's name, without what differs from one write to the next."""
    name = re.sub(r"^\.(.+)\.\w{8}$", r".\1", path.name)
    return re.sub(r"[0-9a-f]{8,}|\d\.\d", "N", name)


def in_a_child(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    if not (child := os.fork()):
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def files_in(place: Path) -> dict[str, bytes]:
    """All of them, those that a killed process left too; but for environment.json, and a study's file half written."""
    found = {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    return {name: data for name, data in found.items() if not _OTHER.search(name)}


def labels_of(work: Callable[[], None], place: Path, base: Path) -> list[str]:
    """The writes of a run that is left alone."""

    def noted() -> None:
        points = Points(place)
        points.watch()
        work()
        labels = "\n".join(points.labels)
        (base / "labels").write_text(labels)

    assert in_a_child(noted) == 0
    return (base / "labels").read_text().splitlines()


def chosen(labels: list[str], seen: set[str]) -> list[int]:
    """For each kind of file that is not in `seen` the last time that it changes, and the write after that."""
    last = {label: place for place, label in enumerate(labels) if not label.startswith(("open", "mkdir"))}
    places = {after for label, place in last.items() if label not in seen for after in (place, place + 1)}
    seen |= last.keys() - {"rename state.safetensors"}  # each kind of run has its own in it
    return sorted(place for place in places if place < len(labels))


def sweep(name: str, base: Path, seen: set[str] | None) -> tuple[int, int]:
    """How many writes there are, and at how many the run was ended; an AssertionError at the first that differs."""
    place = base / name / ("runs" if name == "study" else "run")
    place.parent.mkdir()

    def work() -> None:
        RUNS[name](place, base)

    labels = labels_of(work, place, base)
    whole = files_in(place)
    points = range(len(labels)) if seen is None else chosen(labels, seen)
    for number in points:
        shutil.rmtree(place)
        where = f"{name}, write {number + 1} of {len(labels)}, {labels[number]}"

        def killed(number: int = number) -> None:
            Points(place, number + 1).watch()
            work()

        assert in_a_child(killed) == KILLED, where
        assert in_a_child(work) == 0, where
        found = files_in(place)
        assert found.keys() == whole.keys(), f"{where}: {sorted(found.keys() ^ whole.keys())}"
        assert found == whole, f"{where}: {[file for file in whole if found[file] != whole[file]]}"
    return len(labels), len(points)


def prepare(base: Path) -> None:
    """What the runs begin with; and whatever is only done once in a process, so that children need not."""
    for function in (train, finetune, learn_masks):
        assert function.__kwdefaults__ is not None
        function.__kwdefaults__["checkpoint_every"] = 2
    torch.set_num_threads(1)
    train_in(base / "dense", base)
    prune_in(base / "pruned", base)
    evaluate_in(base / "evaluated", base)
    assert len(os.listdir("/proc/self/task")) == 1  # threads do not survive a fork


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="run", help=", ".join(RUNS))
    parser.add_argument("--some", action="store_true")
    asked = parser.parse_args()
    base, total = Path(tempfile.mkdtemp(prefix="dap-kills-")), 0
    for left in (base, Path(os.environ["DAP_CACHE"])):
        atexit.register(shutil.rmtree, left, ignore_errors=True)
    prepare(base)
    seen = set[str]() if asked.some else None
    for name in asked.names or RUNS:
        start = time.monotonic()
        writes, ends = sweep(name, base, seen)
        total += ends
        print(f"{name}: {writes} writes, ended at {ends}, all equal ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{total} kills, no file differs")


if __name__ == "__main__":
    main()
