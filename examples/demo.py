"""The main job, offline, from nothing: train on three domains, learn masks, compare on the fourth."""

import argparse

import torch
from rich.console import Console
from rich.table import Table

import dap
from dap.allocation import global_masks
from dap.criteria import magnitude, random
from dap.data import DOMAINS, digits, split
from dap.evaluation import accuracy
from dap.models import small_resnet
from dap.progress import progress

SPARSITIES = (0.2, 0.4, 0.6, 0.8, 0.9)

parser = argparse.ArgumentParser()
parser.add_argument("--target", choices=DOMAINS, default="rotated", help="the unseen domain")
parser.add_argument("--dense-steps", type=int, default=400)
parser.add_argument("--steps", type=int, default=500, help="of mask learning")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

suite = digits()
parts = {domain: split(data, index, args.seed) for index, (domain, data) in enumerate(suite.items())}
sources = {domain: train for domain, (train, _) in parts.items() if domain != args.target}
validation = {domain: held_out for domain, (_, held_out) in parts.items() if domain != args.target}

torch.manual_seed(args.seed)
model = small_resnet()
with progress("dense training", args.dense_steps) as advance:
    options = {"learning_rate": 1e-3, "freeze_norms": False, "schedule": "cosine", "seed": args.seed}
    config = dap.TrainConfig(steps=args.dense_steps, **options)
    dap.train(model, sources, config, on_step=lambda stats: advance(f"loss {stats.loss:.3f}"))

with progress("mask learning", args.steps) as advance:
    show = lambda stats: advance(f"loss {stats.loss:.3f}, sparsity {stats.sparsity:.0%}")  # noqa: E731
    config = dap.PruneConfig(steps=args.steps, seed=args.seed)
    path = dap.learn_masks(model, sources, config, milestones=SPARSITIES, on_step=show)

table = Table("", "sparsity", f"unseen: {args.target}", "sources' validation", title="Accuracy on the built-in digits")


def row(method: str, net: torch.nn.Module, sparsity: float) -> None:
    on_sources = [accuracy(net, held_out) for held_out in validation.values()]
    mean = sum(on_sources) / len(on_sources)
    table.add_row(method, f"{sparsity:.1%}", f"{accuracy(net, suite[args.target]):.1%}", f"{mean:.1%}")


row("dense", model, 0.0)
for sparsity in SPARSITIES:
    table.add_section()
    masks = {"DAP": path.snapshots[sparsity].masks if sparsity in path.snapshots else path.masks_at(sparsity)}
    masks |= {score.__name__: global_masks(score(model), sparsity) for score in (magnitude, random)}
    for method, mask in masks.items():
        row(method, dap.bake(model, mask), mask.sparsity)
Console().print(table)
