"""Options of mask learning by the sources' held-out images alone: unseen domains are not looked at.

    python benchmarks/tuning.py docs/results/pacs/train-… --set learning_rate=0.1 --set 'paced={"curve": 1.5}'

Learns masks for the dense model of a run and prints its accuracy on the sources' validation at each sparsity, of the
exact cuts of averaged logits that `dap prune` takes, with the losses of the relaxed and the hard network on a batch,
and the least that a layer keeps. With --without a source takes no part in mask learning: its own held-out images tell
what masks do to a domain that they were not learnt on, and still no unseen image is looked at. Any field of PruneConfig
can be changed with --set name=value. The last line is one JSON object, which `--out` appends to a file.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import nn

import dap
from dap.criteria import Calibration
from dap.evaluation import accuracy
from dap.evaluation.attacks import under_attack
from dap.evaluation.pgd import PGD
from dap.evaluation.pixels import InPixels, Joined
from dap.method.gates import by_weight
from dap.runs.opening import open_dense
from dap.runs.shipping import some_images
from dap.specs import PruneSpec
from dap.specs.methods import FLOPS, SPARSITIES
from dap.structure import find_channels
from dap.training.norms import estimate_norms

CPU = torch.device("cpu")
ATTACK = PGD(2 / 255)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a dense training")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of PruneConfig")
    parser.add_argument("--channels", action="store_true", help="learn whole channels, cut to shares of the FLOPs")
    parser.add_argument("--without", metavar="DOMAIN", help="learn masks without this source, then look at it")
    parser.add_argument("--recalibrated", action="store_true", help="also with norm statistics estimated again")
    parser.add_argument("--pgd", type=int, metavar="N", help="also under PGD at 2/255, on N images of each source")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, help="a file that the last line is appended to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    opened = open_dense(PruneSpec(args.run), Path(args.run))
    settings = {"batch_size": args.batch_size} | {
        name: json.loads(value) for name, value in (pair.split("=", 1) for pair in args.set)
    }

    train, held_out = dict(opened.sources.train), dict(opened.sources.held_out)
    left_out = None
    if args.without is not None:
        if args.without not in train:
            parser.error(f"--without {args.without}: the sources are {', '.join(train)}")
        del train[args.without]
        left_out = held_out.pop(args.without)

    def mean_accuracy(model: nn.Module) -> float:
        found = [accuracy(model, data) for data in held_out.values()]
        return round(100 * sum(found) / len(found), 2)

    def withstood(model: nn.Module) -> float:
        pixels = InPixels(model, opened.card.mean, opened.card.std)
        images = {domain: Joined([data], args.pgd) for domain, data in held_out.items()}
        found = [row.accuracy for row in under_attack(pixels, images, ATTACK).values()]
        return round(100 * sum(found) / len(found), 2)

    def validation(model: nn.Module) -> dict[str, float]:
        row = {"validation": mean_accuracy(model)}
        if left_out is not None:
            row["left out"] = round(100 * accuracy(model, left_out), 2)
        if args.pgd:
            row["under PGD"] = withstood(model)
        if args.recalibrated:
            model = copy.deepcopy(model)
            estimate_norms(model, Calibration(train, batch_size=args.batch_size).stream(CPU))
            row["recalibrated"] = mean_accuracy(model)
        return row

    rows: dict[str, dict[str, float]] = {"dense": validation(opened.model)}
    start = time.perf_counter()
    config = dap.PruneConfig.from_dict(settings)
    path = dap.learn_masks(
        opened.model,
        train,
        config,
        objective=opened.objective,
        milestones=FLOPS if args.channels else SPARSITIES,
        granularity=find_channels(opened.model, some_images(opened.sources)) if args.channels else by_weight,
    )
    seconds = round(time.perf_counter() - start)
    for sparsity, shot in path.snapshots.items():
        assert shot.cut is not None
        rows[str(sparsity)] = {
            **validation(dap.bake(opened.model, shot.cut)),
            "step": shot.step,
            "relaxed loss": round(shot.relaxed_loss, 3),
            "hard loss": round(shot.hard_loss, 3),
            "least kept": round(1 - max(shot.cut.by_layer().values()), 4),
        }
    for name, row in rows.items():
        print(f"{name:>5}  " + "  ".join(f"{key} {value}" for key, value in row.items()))
    facts = {"targets": list(opened.sources.targets), "without": args.without, "settings": settings, "seconds": seconds}
    line = json.dumps(facts | {"rows": rows})
    if args.out is not None:
        with args.out.open("a") as file:
            file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
