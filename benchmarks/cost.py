"""What mask learning costs beside dense training of as many steps, as a ratio measured in one run.

    python benchmarks/cost.py

ResNet-18, three domains of 16 images at 112 pixels. A step of dense training is the trainer's: forward, backward, Adam
on all weights. A run of mask learning with the preset updates the sensitivity in one step of `f_update`. Medians of
interleaved repeats are compared; drawing images is left out of both. The last line is one JSON object.
"""

import argparse
import copy
import json

import torch

import dap
from dap.config import TrainConfig
from dap.models import create_classifier
from dap.training.step import Trainer
from step import DOMAINS, calibrated, medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=112)
    parser.add_argument("--images", type=int, default=16, help="of each domain")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    shape = (args.images, 3, args.pixels, args.pixels)
    batches = {domain: (torch.randn(shape), torch.randint(7, (args.images,))) for domain in DOMAINS}
    model = calibrated(create_classifier("resnet18", 7), batches)
    trainer = Trainer(copy.deepcopy(model), dap.objectives.Erm(), TrainConfig(steps=500, learning_rate=1e-6))
    preset = dap.PruneConfig(steps=500).resolved()
    never = dap.Pruner(model, dap.PruneConfig(steps=10_000, f_update=10_000))
    always = dap.Pruner(model, dap.PruneConfig(steps=10_000, f_update=1))
    seconds = medians(
        {
            "dense training": lambda: trainer.step(batches),
            "ordinary step": lambda: never.step(batches),
            "step with sensitivity": lambda: always.step(batches),
        },
        args.repeats,
    )
    share = 1 / preset.f_update
    seconds["preset, on average"] = share * seconds["step with sensitivity"] + (1 - share) * seconds["ordinary step"]
    for label, value in seconds.items():
        print(f"{label:24} {value:8.3f} s   {value / seconds['dense training']:.3f} of dense training")
    print(json.dumps({"run_over_training": round(seconds["preset, on average"] / seconds["dense training"], 4)}))


if __name__ == "__main__":
    main()
