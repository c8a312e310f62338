"""Training and mask learning by several processes: `python ranked.py <devices> <folder>`.

Each rank writes what it ended with.
"""

import sys
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]

import torch
from torch.utils.data import Dataset, TensorDataset

import dap
from conftest import make_batches, make_classifier
from dap.objectives import OBJECTIVES
from dap.runtime.checkpoints import save_state
from measures import registered

# Objectives by the name of their run. With free norms each rank sees statistics of its own, so that only ranks agree.
RUNS = {name: name for name in OBJECTIVES} | {"free norms": "coral"}


class Routed(torch.nn.Module):
    """Each image takes one of the ways, so that a rank's images may leave some of them out; one is never taken."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.ways = torch.nn.ModuleList([torch.nn.Linear(192, 3) for _ in range(7)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1)
        taken = (images[:, 0, 0, 0] * 3).long().clamp(-3, 2)
        rows = {way: (taken == way).nonzero().flatten() for way in range(-3, 3)}
        parts = [self.ways[way](flat[where]) for way, where in rows.items() if len(where)]
        order = torch.cat([where for where in rows.values() if len(where)])
        return torch.cat(parts)[order.argsort()]


class Noisy(Dataset):
    """A dataset with random transforms of its own."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index] + 0.1 * torch.randn(self.images[index].shape), self.labels[index]


SOURCES = {name: Noisy(*batch) for name, batch in make_batches(size=40).items()}
HELD_OUT = {name: TensorDataset(*batch) for name, batch in make_batches(size=21, seed=1).items()}


def main(devices: int, folder: Path) -> None:
    torch.set_num_threads(1)
    engine = dap.launch(devices=devices, accelerator="cpu", oversubscribe=True)
    torch.manual_seed(engine.ranks.rank)  # a rank must not depend on its process's own randomness
    tensors, values = {}, {}
    for name, objective in RUNS.items():
        model = make_classifier()
        torch.manual_seed(engine.ranks.rank)
        dense = dap.train(
            model,
            SOURCES,
            dap.TrainConfig(steps=5, learning_rate=1e-3, batch_size=8, check_every=2, freeze_norms=name == objective),
            objective=OBJECTIVES[objective](),
            validation=HELD_OUT,
            checkpoint=folder / f"{devices}-{name}.safetensors",
            engine=engine,
        )
        config = dap.PruneConfig(steps=6, target_sparsity=0.8, f_update=2, batch_size=8)
        path = dap.learn_masks(
            model, SOURCES, config, objective=dense.objective, validation=HELD_OUT, eval_every=3, engine=engine
        )
        assert path.pruner.sensitivity is not None
        tensors |= {f"{name}.model.{key}": value for key, value in model.state_dict().items()}
        tensors |= {f"{name}.logits": path.pruner.effective, f"{name}.sensitivity": path.pruner.sensitivity}
        tensors |= {f"{name}.masks.{key}": value for key, value in path.masks.items()}
        values[name] = {"losses": dense.losses, "validation": [score.accuracy for score in dense.scores]}
        values[name] |= {"history": path.history}
    with registered() as measures:
        for name in measures:
            config = dap.PruneConfig(steps=6, target_sparsity=0.8, f_update=2, batch_size=8, sensitivity=name)
            path = dap.learn_masks(make_classifier(), SOURCES, config, engine=engine)
            state = path.pruner.state_dict()["tensors"]
            tensors |= {f"measure {name}.{key}": value for key, value in state.items()}
    config = dap.PruneConfig(steps=6, target_sparsity=0.8, f_update=2, batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ways that are left out
        path = dap.learn_masks(Routed(), HELD_OUT, config, engine=engine)
    tensors["routed.logits"], values["routed"] = path.pruner.effective, {"unused": path.pruner.unused}
    data = dap.criteria.Calibration(SOURCES, batches=2, batch_size=8, engine=engine)
    for name in ("taylor", "wanda", "ior", "dss"):
        scores = dap.criteria.CRITERIA[name](make_classifier(), data)
        tensors |= {f"{name} scores.{key}": score for key, score in scores.items()}
    torch.manual_seed(engine.ranks.rank)
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    try:
        dap.train(own, SOURCES, dap.TrainConfig(steps=1, batch_size=8), engine=engine)
    except dap.DapError as error:
        values["own models"] = str(error)
    save_state(folder / f"{devices}-rank-{engine.ranks.rank}", tensors, values)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
