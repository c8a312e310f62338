"""Pruning as a run: the same folder whatever the method, so that whoever reads it need not know which one it was.

spec.json  result.json           of the whole run
0.8/masks.safetensors            what is kept at 80 %
0.8/model.safetensors            the sparse model, where weights moved; else the masks and the dense model make it
0.8/result.json                  its numbers; it is written last
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dap.checkpoints import checksum
from dap.config import FinetuneConfig, PruneConfig
from dap.criteria import Calibration, News
from dap.data import load_suite
from dap.dense import load_dense
from dap.engine import Engine
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.files import write_atomic
from dap.masking import bake
from dap.masks import Masks
from dap.models import Classifier, ModelCard, load_classifier, save_classifier
from dap.pruning import METHODS, Pruned, prune
from dap.runs.folder import RESULT, SPEC, claim
from dap.runs.sources import Sources, divide, on_targets
from dap.runs.training import read_spec

_MASKS, _MODEL = "masks.safetensors", "model.safetensors"


@dataclass(frozen=True)
class PruneSpec:
    """A pruning of a dense training, by any method."""

    dense: str  # the folder of the dense training
    method: str = "dap"
    sparsities: tuple[float, ...] | None = None  # None: 20, 40, 60, 80 and 90 %
    allocation: str | None = None  # None: the method's own
    finetuned: bool | None = None  # None: the method's own
    batches: int = 50  # per domain, for methods that only look
    prune: PruneConfig = field(default_factory=PruneConfig)  # masked weights, batch size and seed are for every method
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)


def prune_dense(
    spec: PruneSpec,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    on_step: Callable[[News], None] | None = None,
) -> dict[str, Any]:
    """Prune the dense model, save masks in `folder`, and evaluate. A run that was stopped goes on."""
    engine, folder = engine or Engine(), Path(folder)
    model, objective, card = load_dense(spec.dense)
    trained = read_spec(spec.dense)
    suite = load_suite(trained.suite, trained.root, trained.pixels, on_corrupt=trained.on_corrupt)
    sources = divide(suite, trained.targets, trained.train.seed)
    if engine.device is not None:
        model.to(engine.device)
    data = Calibration(
        sources.train,
        objective,
        batches=spec.batches,
        batch_size=spec.prune.batch_size,
        seed=spec.prune.seed,
        checkpoint=folder / "state.safetensors",
        on_step=on_step,
        engine=engine,
    )
    done = {row["wished"]: row for row in map(_read, folder.glob(f"*/{RESULT}"))}
    coming = prune(
        model,
        data,
        spec.method,
        spec.sparsities,
        allocation=spec.allocation,
        finetuned=spec.finetuned,
        config=spec.prune,
        train=spec.finetune.over(trained.train),
        validation=sources.held_out,
        skip=done,
    )
    claim(folder, spec, engine)
    if not (folder / RESULT).exists():
        identity = _identity(model)
        for pruned in coming:
            done[pruned.wished] = _keep(folder, pruned, sources, card, identity, engine)
        found = {"dense": _evaluate(model, sources, engine), "sparse": dict(sorted(done.items()))}
        method = {"method": spec.method, "title": METHODS[spec.method].title}
        if engine.first:
            write_atomic(folder / RESULT, json.dumps({"spec": asdict(spec), **method, **found}, indent=1).encode())
        engine.ranks.wait()
    return _read(folder / RESULT)


def load_pruned(
    folder: str | Path, wished: str | float, dense: str | Path | None = None
) -> tuple[Classifier, Masks, ModelCard]:
    """The sparse model of a finished pruning: a plain classifier with zeros in place, its masks and its card.

    `wished` is the sparsity that was asked for. `dense` says where the dense training is now, if it was moved.
    """
    folder, name = Path(folder), _folder_name(str(wished))
    file = folder / name / RESULT
    if not file.is_file():
        found = sorted(path.parent.name for path in folder.glob(f"*/{RESULT}"))
        raise DapError(f"no masks for {wished} in {folder}; it has {', '.join(found) or 'none'}")
    masks = Masks.load(folder / name / _MASKS)
    if (folder / name / _MODEL).is_file():
        model, card = load_classifier(folder / name / _MODEL)
        return model, masks, card
    dense = Path(dense or _read(folder / SPEC)["dense"])
    model, _, card = load_dense(dense)
    if _identity(model) != _read(file)["identity"]:
        raise DapError(f"the dense model in {dense} is not the one that was pruned: name the right folder")
    sparse = bake(model, masks)
    assert isinstance(sparse, Classifier)
    return sparse, masks, card


def _keep(
    folder: Path, pruned: Pruned, sources: Sources, card: ModelCard, identity: int, engine: Engine
) -> dict[str, Any]:
    """Write one sparse model down, with its numbers."""
    place = folder / _folder_name(pruned.wished)
    result = {
        "wished": pruned.wished,
        "sparsity": pruned.masks.sparsity,
        "kept": pruned.masks.kept,
        "total": pruned.masks.total,
        "allocation": pruned.allocation,
        "weights moved": pruned.moved,
        "identity": identity,
        **_evaluate(pruned.model, sources, engine),
        "layers": pruned.masks.by_layer(),
    }
    if engine.first:
        pruned.masks.save(place / _MASKS)
        if pruned.moved:
            assert isinstance(pruned.model, Classifier)
            save_classifier(pruned.model, place / _MODEL, card)
        write_atomic(place / RESULT, json.dumps(result, indent=1).encode())
    return result


def _evaluate(model: nn.Module, sources: Sources, engine: Engine) -> dict[str, Any]:
    held_out = {domain: accuracy(model, data, ranks=engine.ranks) for domain, data in sources.held_out.items()}
    return {"validation": held_out, "targets": on_targets(model, sources, engine.ranks)}


def _identity(model: nn.Module) -> int:
    return checksum(torch.tensor([checksum(tensor) for tensor in model.state_dict().values()]))


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def _folder_name(wished: str) -> str:
    return wished.replace(":", "-of-")
