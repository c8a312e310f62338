"""Dense against 80 %-sparse DAP on the built-in digits: both attacks at five severities, and all corruptions.

    python benchmarks/robustness.py --out runs/robustness

prints the tables of docs/results/digits-robustness.md: every domain unseen once, mean ± standard deviation over seeds
of the mean over unseen domains. What is done already is not done again.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dap.specs import EvaluateSpec, PruneSpec, TrainSpec
from dap.studies.local import run_locally
from dap.studies.study import FILES, Study, read_study
from dap.studies.watching import watched

STUDY = """
name: robustness
train:
  suite: digits
  target: [outline, plain, rotated, textured]
  seed: {seeds}
  backbone: small_resnet
  weights: null
  train: {{steps: 600, learning_rate: 1e-3, freeze_norms: false, schedule: cosine, check_every: 100}}
prune:
  method: dap
  sparsities: [0.8]
  prune: {{steps: 500, target_sparsity: 0.95, alpha: 1, beta: 0.92, f_update: 5, paced: {{start: 1, curve: 1}}}}
evaluate: {{attacks: [fgsm, pgd], corruptions: true, images: {images}}}
"""
MODELS = {"dense": "Dense", "0.8": "DAP, 80 %"}


def results(study: Study) -> dict[int, list[dict[str, Any]]]:
    """By seed, the models' evaluations for every unseen domain."""
    trials: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    for run, spec in study.runs.items():
        if isinstance(spec, EvaluateSpec):
            dense = spec.run.dense if isinstance(spec.run, PruneSpec) else spec.run
            assert isinstance(dense, TrainSpec)
            models = json.loads((study.place(run) / "result.json").read_text())["models"]
            trials.setdefault((dense.train.seed, dense.targets), {}).update(models)
    found: dict[int, list[dict[str, Any]]] = {}
    for (seed, _), models in trials.items():
        found.setdefault(seed, []).append(models)
    return found


def cell(found: dict[int, list[dict[str, Any]]], value: Callable[[dict[str, Any]], float], form: str = ".1f") -> str:
    means = [fmean(value(models) for models in seed) for seed in found.values()]
    return f"{fmean(means):{form}}" + (f" ± {stdev(means):{form}}" if len(means) > 1 else "")


def domains(model: dict[str, Any], unseen: bool) -> Iterable[str]:
    return model["targets" if unseen else "sources"]


def attack_table(found: dict[int, list[dict[str, Any]]], attack: str, unseen: bool) -> str:
    lines = ["| | clean | " + " | ".join(f"{severity}" for severity in range(1, 6)) + " |", "|---" * 7 + "|"]
    for key, title in MODELS.items():

        def accuracy(models: dict[str, Any], severity: str, what: str = "accuracy", key: str = key) -> float:
            rows = models[key]["attacks"][attack][severity]
            return 100 * fmean(rows[domain][what] for domain in domains(models[key], unseen))

        cells = [cell(found, lambda models: accuracy(models, "1", "clean"))]
        cells += [cell(found, lambda models, s=str(severity): accuracy(models, s)) for severity in range(1, 6)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def corruption_table(found: dict[int, list[dict[str, Any]]], unseen: bool) -> str:
    first = next(iter(found.values()))[0]["dense"]["corruptions"]
    names = list(next(iter(first.values()))["accuracy"])
    lines = ["| | " + " | ".join(MODELS.values()) + " |", "|---|---|---|"]

    def accuracy(models: dict[str, Any], key: str, name: str) -> float:
        rows = [models[key]["corruptions"][domain]["accuracy"][name] for domain in domains(models[key], unseen)]
        return 100 * fmean(value for row in rows for value in row.values())

    for name in names:
        cells = [cell(found, lambda models, k=key, n=name: accuracy(models, k, n)) for key in MODELS]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")

    def mean(models: dict[str, Any], key: str) -> float:
        return fmean(accuracy(models, key, name) for name in names)

    cells = [cell(found, lambda models, k=key: mean(models, k)) for key in MODELS]
    lines.append(f"| **mean** | {' | '.join(cells)} |")
    cells = [
        cell(found, lambda models, k=key: (100 - mean(models, k)) / (100 - mean(models, "dense")), ".3f")
        for key in MODELS
    ]
    lines.append(f"| **errors relative to dense** | {' | '.join(cells)} |")
    return "\n".join(lines)


def plain_table(found: dict[int, list[dict[str, Any]]]) -> str:
    columns = {"accuracy": 100, "loss": 1, "calibration_error": 1, "worst_class_accuracy": 100}
    lines = ["| | accuracy % | loss | calibration error | worst class % |", "|---" * 5 + "|"]
    for key, title in MODELS.items():
        cells = []
        for name, scale in columns.items():

            def value(models: dict[str, Any], key: str = key, name: str = name, scale: int = scale) -> float:
                return scale * fmean(parts["all"][name] for parts in models[key]["targets"].values())

            cells.append(cell(found, value, ".1f" if scale == 100 else ".3f"))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=100, help="of each domain, for attacks and corruptions")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    file = args.out / FILES / "study.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STUDY.format(seeds=args.seeds, images=args.images))
    study = read_study(file, args.out)
    with watched(study, len(study.runs), 0) as events:
        run_locally(study, list(study.runs), args.workers, events=events)
    found = results(study)
    print(f"\n{len(found)} seeds, every domain unseen once, at most {args.images} images of each domain\n")
    print(f"## On the unseen domain\n\n{plain_table(found)}")
    for unseen in (True, False):
        side = "the unseen domain" if unseen else "the sources' held-out images"
        for attack in ("fgsm", "pgd"):
            title = f"## {attack.upper()}, accuracy in % on {side}, by severity"
            print(f"\n{title}\n\n{attack_table(found, attack, unseen)}")
        print(f"\n## Corruptions, accuracy in % on {side}, mean over severities\n\n{corruption_table(found, unseen)}")
    print(json.dumps({"evaluations": sum(map(len, found.values()))}))


if __name__ == "__main__":
    main()
