"""A run in a process of its own, to be killed: `python killable.py masks|dense <checkpoint> <result> <pause>`."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]

import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dap
from conftest import Stages, make_batches, make_model

CONFIG = dap.PruneConfig(steps=40, target_sparsity=0.9, f_update=3, batch_size=6)
SOURCES = {name: TensorDataset(*batch) for name, batch in make_batches(size=40).items()}


def start(kind: str, checkpoint: Path, result: Path, pause: float) -> subprocess.Popen:
    command = [sys.executable, __file__, kind, str(checkpoint), str(result), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == str(step):
            return
    raise AssertionError(f"the process ended before step {step}")


def kill_at(steps: list[int], kind: str, checkpoint: Path, result: Path) -> list[str]:
    """Start a run, kill it, start it again, …; what the last start, which is left alone, prints."""
    for step in steps:
        with start(kind, checkpoint, result, 0.05) as process:
            wait_for_step(process, step)
            process.kill()
        assert not result.exists()
    process = start(kind, checkpoint, result, 0)
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.split()


def showing(pause: float) -> Callable:
    def on_step(stats: dap.StepStats) -> None:
        print(stats.step, flush=True)
        time.sleep(pause)

    return on_step


def learn(checkpoint: str | None, pause: float = 0.0) -> dap.MaskPath:
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
        on_step=showing(pause),
    )
    torch.set_num_threads(threads)
    return path


def train(checkpoint: str | None, pause: float = 0.0) -> dap.Dense:
    """With as much state as there can be: dropout, two optimisers, unfrozen norms, averaged weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stages = Stages()
    stages.body.append(nn.Dropout(0.3))
    dense = dap.train(
        dap.Classifier.of(stages, nn.Linear(8, 3), stage_channels=(6, 8)),
        SOURCES,
        dap.TrainConfig(
            steps=40, learning_rate=1e-2, batch_size=6, freeze_norms=False, check_every=3, swad=dap.SwadConfig()
        ),
        objective=dap.objectives.Dann(width=16),
        validation=SOURCES,
        watch=SOURCES,
        checkpoint=checkpoint,
        checkpoint_every=3,
        on_step=showing(pause),
    )
    torch.set_num_threads(threads)
    return dense


if __name__ == "__main__":
    kind, checkpoint, result, pause = sys.argv[1:]
    if kind == "masks":
        path = learn(checkpoint, float(pause))
        path.masks.save(result)
        print("interrupted" if path.interrupted else "finished", flush=True)
    else:
        dense = train(checkpoint, float(pause))
        safetensors.torch.save_model(dense.model, result)
        print("interrupted" if dense.interrupted else "finished", flush=True)
