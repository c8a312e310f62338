"""A run of mask learning in a process of its own, to be killed: `python killable.py <checkpoint> <masks> <pause>`."""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]

import torch
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches, make_model

CONFIG = dap.PruneConfig(steps=40, target_sparsity=0.9, f_update=3, batch_size=6)
SOURCES = {name: TensorDataset(*batch) for name, batch in make_batches(size=40).items()}


def learn(checkpoint: str | None, pause: float = 0.0) -> dap.MaskPath:
    def on_step(stats: dap.StepStats) -> None:
        print(stats.step, flush=True)
        time.sleep(pause)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many here as in the process that is killed
    path = dap.learn_masks(
        make_model("convolutional"),
        SOURCES,
        CONFIG,
        milestones=(0.2, 0.5, 0.8),
        validation=SOURCES,
        eval_every=7,
        checkpoint=checkpoint,
        checkpoint_every=3,
        on_step=on_step,
    )
    torch.set_num_threads(threads)
    return path


if __name__ == "__main__":
    path = learn(sys.argv[1], float(sys.argv[3]))
    path.masks.save(sys.argv[2])
    print("interrupted" if path.interrupted else "finished", flush=True)
