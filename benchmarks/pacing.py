"""The paced preset on real images: PACS, ResNet-18, 64 pixels, one domain unseen.

    python benchmarks/pacing.py --target cartoon --steps 500 --out runs/pacing/cartoon.json

Trains the dense model (kept beside the result), learns masks once, and prints accuracy at each sparsity from
snapshots, from the final ranking and from magnitudes, on the unseen domain and on the sources' validation. Any field of
PruneConfig can be changed with --set name=value. The last line is one JSON object.
"""

import argparse
import json
import time
from pathlib import Path

import safetensors.torch
import torch
from rich.progress import track

import dap
from dap.criteria import magnitude
from dap.data import split
from dap.evaluation import accuracy
from dap.masks.allocation import global_masks
from pacs import DOMAINS, pacs, resnet18

SPARSITIES = (0.2, 0.4, 0.6, 0.8, 0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=DOMAINS, default="cartoon")
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--dense-steps", type=int, default=300)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of PruneConfig")
    parser.add_argument("--out", type=Path, default=Path("runs/pacing/result.json"))
    args = parser.parse_args()

    domains = pacs(args.pixels)
    splits = {name: split(data, index, args.seed) for index, (name, data) in enumerate(domains.items())}
    train = {name: parts[0] for name, parts in splits.items() if name != args.target}
    validation = {name: parts[1] for name, parts in splits.items() if name != args.target}
    unseen = domains[args.target]

    model = dense(args, train)

    def measure(masks: dap.Masks | None) -> dict[str, float]:
        net = dap.bake(model, masks) if masks else model
        on_sources = [accuracy(net, data) for data in validation.values()]
        return {"target": accuracy(net, unseen), "validation": sum(on_sources) / len(on_sources)}

    rows = {"dense": {"0": measure(None)}}
    settings = {"steps": args.steps, "batch_size": 16, "seed": args.seed}
    settings |= {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in args.set)}
    start = time.perf_counter()
    path = dap.learn_masks(
        model, train, dap.PruneConfig.from_dict(settings), milestones=SPARSITIES, validation=validation, eval_every=50
    )
    seconds = time.perf_counter() - start
    rows["snapshot"] = {str(s): measure(shot.masks) for s, shot in track(path.snapshots.items(), "snapshots")}
    rows["ranking"] = {str(s): measure(path.masks_at(s)) for s in track(SPARSITIES, "ranking")}
    scores = magnitude(model)
    rows["magnitude"] = {str(s): measure(global_masks(scores, s)) for s in track(SPARSITIES, "magnitude")}

    for method, results in rows.items():
        for sparsity, result in results.items():
            print(f"{method:12} {sparsity:>4}  target {result['target']:.3f}  validation {result['validation']:.3f}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"settings": settings, "rows": rows, "history": path.history}))
    print(json.dumps({"target": args.target, "settings": settings, "seconds": round(seconds), "rows": rows}))


def dense(args: argparse.Namespace, train: dict) -> torch.nn.Module:
    """ERM from ImageNet weights; trained once for each target, size and seed."""
    torch.manual_seed(args.seed)
    model = resnet18(7)
    file = Path(f"runs/pacing/dense-{args.target}-{args.pixels}-{args.dense_steps}-{args.seed}.safetensors")
    if not file.exists():
        dap.train(model, train, dap.TrainConfig(steps=args.dense_steps, batch_size=16, seed=args.seed))
        file.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(model, str(file))
    safetensors.torch.load_model(model, str(file))
    return model


if __name__ == "__main__":
    main()
