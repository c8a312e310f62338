"""A small dense training, and prunings of it by every method."""

from pathlib import Path

from dap.config import FinetuneConfig, PruneConfig, TrainConfig
from dap.runs import PruneSpec, TrainSpec, train_dense
from dap.specs.methods import METHODS
from small_studies import small_suite


def dense_training(folder: Path) -> Path:
    config = TrainConfig(steps=4, batch_size=4, freeze_norms=False, learning_rate=1e-3, seed=2)
    options = {"pixels": 16, "backbone": "small_resnet", "weights": None, "objective": "coral"}
    spec = TrainSpec(str(small_suite()), ("rotated",), train=config, **options)
    train_dense(spec, folder)
    return folder


def spec_of(dense, method: str, **options) -> PruneSpec:
    config = PruneConfig(steps=3, target_sparsity=0.6, batch_size=4)
    tuning = FinetuneConfig(steps=2)
    sparsities = None if METHODS[method].whole else (0.3, 0.5)
    return PruneSpec(str(dense), method, sparsities, batches=2, prune=config, finetune=tuning, **options)
