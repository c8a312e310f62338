"""Every pruning method on the built-in digits, on equal terms: all domains unseen once, three seeds.

    python benchmarks/baselines.py --out runs/baselines

prints the tables of docs/results/digits-pruning.md. What is done already is not done again. One thread per process.
"""

import argparse
import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import torch
from rich.progress import track

from dap.config import FinetuneConfig, PacedSchedule, PruneConfig, TrainConfig
from dap.data import DOMAINS
from dap.runs import PruneSpec, TrainSpec, prune_dense, train_dense
from dap.specs.methods import METHODS, SPARSITIES

# How each row of the table differs from the method's own way.
ROWS = {
    **{name: {"method": name} for name, method in METHODS.items() if not method.whole},
    "dap ranking": {"method": "dap", "allocation": "global"},
    "magnitude per layer": {"method": "magnitude", "allocation": "per_layer"},
    "magnitude fine-tuned": {"method": "magnitude", "finetuned": True},
}
TITLES = {
    **{name: method.called() for name, method in METHODS.items()},
    "dap ranking": "DAP, cut from the final ranking",
    "magnitude per layer": "Magnitude, per layer",
    "magnitude fine-tuned": "Magnitude, fine-tuned",
}
ORDER = ["random", "magnitude per layer", "magnitude", "taylor", "wanda", "movement", "agnostic", "dap ranking", "dap"]
ORDER += ["magnitude fine-tuned", "ior", "dss"]


STEPS = {"dense": 600, "masks": 500, "tuning": 100}  # tuning: at each of five sparsities


def run(out: Path, target: str, seed: int) -> dict[str, dict]:
    """Train one dense model and prune it by every method."""
    torch.set_num_threads(1)
    folder = out / f"{target}-{seed}"
    config = TrainConfig(STEPS["dense"], 1e-3, schedule="cosine", freeze_norms=False, check_every=100, seed=seed)
    spec = TrainSpec("digits", (target,), backbone="small_resnet", weights=None, train=config)
    if not (folder / "dense" / "result.json").exists():
        train_dense(spec, folder / "dense")
    # The preset of its time.
    straight = PacedSchedule(start=1.0, curve=1.0)
    earlier = {"target_sparsity": 0.95, "alpha": 1.0, "beta": 0.92, "f_update": 5, "paced": straight}
    mask_learning = PruneConfig(steps=STEPS["masks"], seed=seed, **earlier)
    results = {}
    for name in sorted(ORDER):
        place = folder / name.replace(" ", "-")
        if name == "dap ranking" and not place.exists():  # learning ends the same way: no need to do it again
            place.mkdir()
            shutil.copy(folder / "dap" / "state.safetensors", place)
        # Movement takes as many steps as mask learning, and so does fine-tuning for its five sparsities together.
        tuning = FinetuneConfig() if name == "movement" else FinetuneConfig(STEPS["tuning"], check_every=50)
        wish = {"sparsities": SPARSITIES, "prune": mask_learning, "finetune": tuning, **ROWS[name]}
        results[name] = prune_dense(PruneSpec(str(folder / "dense"), **wish), place)
    return results


def accuracy(result: dict, side: str) -> float:
    """In %: of the unseen domain, or the mean over the sources' held-out images."""
    if side == "unseen":
        (scores,) = result["targets"].values()
        return 100 * scores["all"]
    return 100 * fmean(result["validation"].values())


def over_seeds(results: dict, seeds: list[int], value) -> str:
    """Mean and standard deviation over seeds of the mean over the unseen domains."""
    means = [fmean(value(results[target, seed]) for target in DOMAINS) for seed in seeds]
    return f"{fmean(means):.1f}" + (f" ± {stdev(means):.1f}" if len(means) > 1 else "")


def table(results: dict, seeds: list[int], side: str) -> str:
    dense = over_seeds(results, seeds, lambda found: accuracy(found["magnitude"]["dense"], side))
    lines = ["| | " + " | ".join(f"{sparsity:.0%}" for sparsity in SPARSITIES) + " |", "|---" * 6 + "|"]
    for name in ORDER:
        cells = [
            over_seeds(results, seeds, lambda found, s=sparsity: accuracy(found[name]["sparse"][str(s)], side))  # noqa: B023
            for sparsity in SPARSITIES
        ]
        lines.append(f"| {TITLES[name]} | {' | '.join(cells)} |")
    return f"Dense: {dense}\n\n" + "\n".join(lines)


def by_target(results: dict, seeds: list[int], sparsity: float) -> str:
    """The unseen accuracy of every domain, mean over seeds."""
    lines = ["| | " + " | ".join(DOMAINS) + " |", "|---" * (1 + len(DOMAINS)) + "|"]
    for name in ["dense", *ORDER]:
        cells = []
        for target in DOMAINS:
            found = [results[target, seed] for seed in seeds]
            rows = [
                each["magnitude"]["dense"] if name == "dense" else each[name]["sparse"][str(sparsity)] for each in found
            ]
            values = [accuracy(row, "unseen") for row in rows]
            cells.append(f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else ""))
        lines.append(f"| {TITLES.get(name, 'Dense')} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    jobs = [(target, seed) for seed, target in product(args.seeds, DOMAINS)]
    with ProcessPoolExecutor(args.workers) as pool:
        futures = {job: pool.submit(run, args.out, *job) for job in jobs}
        results = {job: future.result() for job, future in track(futures.items(), "runs")}
    print(f"{len(args.seeds)} seeds, {len(DOMAINS)} unseen domains")
    for side in ("unseen", "sources' validation"):
        print(f"\n## Accuracy in %, {side}\n\n{table(results, args.seeds, side)}")
    for sparsity in (0.4, 0.8):
        print(f"\n## Unseen domain by domain, {sparsity:.0%} sparse\n\n{by_target(results, args.seeds, sparsity)}")
    print(json.dumps({"runs": len(results) * len(ORDER)}))
