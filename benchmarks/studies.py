"""A study of 12 runs on the digits: two workers against one.

    python benchmarks/studies.py

Three times the same study, each in a folder of its own: by one worker of one thread, by two of them, and by
one worker of two threads. The last line is one JSON object; `identical` says whether the first two came to the same.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from dap.masks import Masks
from dap.studies import Study, read_study
from dap.studies.local import run_locally

STUDY = """
name: twelve
threads: {threads}
train:
  suite: digits
  target: [outline, plain, rotated, textured]
  backbone: small_resnet
  weights: null
  train: {{steps: {steps}, learning_rate: 0.001, freeze_norms: false, schedule: cosine, check_every: 100}}
prune:
  - method: dap
    prune: {{steps: {steps}}}
  - method: taylor
"""


def timed(folder: Path, workers: int, threads: int, steps: int) -> tuple[float, Study]:
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY.format(threads=threads, steps=steps))
    study = read_study(folder / "study.yaml", folder / "runs")
    assert len(study.runs) == 12
    start = time.perf_counter()
    outcomes = run_locally(study, list(study.runs), workers, threads)
    assert set(outcomes.values()) == {"done"}, outcomes
    seconds = time.perf_counter() - start
    print(f"{workers} workers of {threads} threads: {seconds:.0f} s", flush=True)
    return seconds, study


def same(one: Study, other: Study) -> bool:
    """The same numbers and the same masks in every run."""
    for run in one.runs:
        ours, theirs = one.place(run), other.place(run)
        if (ours / "result.json").read_bytes() != (theirs / "result.json").read_bytes():
            return False
        for file in ours.glob("*/masks.safetensors"):
            if Masks.load(file) != Masks.load(theirs / file.relative_to(ours)):
                return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="of every training and mask learning")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, alone = timed(folder / "one", 1, 1, args.steps)
        two, pair = timed(folder / "two", 2, 1, args.steps)
        threaded, _ = timed(folder / "threaded", 1, 2, args.steps)
        result = {
            "two_workers_over_one": round(two / one, 3),
            "two_workers_over_one_with_two_threads": round(two / threaded, 3),
            "identical": same(alone, pair),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
