"""The main job, offline, from nothing: train on three domains, prune, compare on the fourth, and make a page of it."""

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from dap.data import DOMAINS
from dap.report import overview
from dap.report.writing import read_contents, write_files, write_page
from dap.studies.local import run_locally
from dap.studies.study import FILES, read_study
from dap.studies.watching import watched

STUDY = """
name: Handwritten digits, {target} unseen
threads: {threads}
train:
  suite: digits
  target: {target}
  seed: {seed}
  backbone: small_resnet
  weights: null
  train: {{steps: {dense_steps}, learning_rate: 1e-3, freeze_norms: false, schedule: cosine, check_every: 100}}
prune:
  - {{method: [magnitude, random], sparsities: {sparsities}}}
  - {{method: dap, sparsities: {sparsities}, watch_every: 50, prune: {{steps: {steps}}}}}
evaluate: {{sparsities: [0.8], attacks: [pgd], images: {images}, interpret: true}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", choices=DOMAINS, default="rotated", help="the unseen domain")
    for name, default in {"dense-steps": 400, "steps": 500, "seed": 0, "images": 25, "threads": os.cpu_count()}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.2, 0.4, 0.6, 0.8, 0.9])
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    args = parser.parse_args()
    file = args.out / FILES / "study.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STUDY.format(**vars(args)))
    study = read_study(file, args.out)
    left = [run for run in study.runs if not study.done(run)]  # the same command goes on where it was stopped
    with watched(study, len(study.runs), len(study.runs) - len(left)) as events:
        run_locally(study, left, workers=1, threads=study.threads, events=events)

    page = args.out / "report.html"
    contents = read_contents(args.out)
    write_page(contents, page)
    write_files(contents, args.out / "files")
    Console().print(Markdown(overview(contents.records).markdown()))
    print(f"the page is {page}")


if __name__ == "__main__":  # workers are processes of their own
    main()
