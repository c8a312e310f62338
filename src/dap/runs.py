"""A run: from a specification to a folder with its result."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from dap.config import TrainConfig
from dap.data import Images, Suite, load_suite, split_suite
from dap.dense import save_dense
from dap.engine import Engine
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.files import write_atomic
from dap.models import Classifier, ModelCard, create_classifier
from dap.objectives import OBJECTIVES, Objective
from dap.sources import Source
from dap.trainer import TrainStats
from dap.training import Dense, train


@dataclass(frozen=True)
class TrainSpec:
    """A dense training: images, network, objective, options. The seed also draws the splits: a trial of DomainBed."""

    suite: str
    targets: tuple[str, ...]  # unseen domains; two for leave-one-domain-out selection
    root: str | None = None  # the folder that holds the suite's own
    pixels: int = 224
    on_corrupt: Literal["fail", "skip"] = "fail"
    backbone: str = "resnet50"
    weights: str | None = "pretrained"  # or a file; None: random
    objective: str = "erm"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the objective
    train: TrainConfig = field(default_factory=TrainConfig)


@dataclass(frozen=True)
class Sources:
    """The images of a suite as training sees them."""

    train: dict[str, Source]
    held_out: dict[str, Source]
    # By unseen domain: its 80 %, which DomainBed reports, its 20 %, which the oracle looks at, and all of it.
    targets: dict[str, dict[str, Source]]


def divide(suite: Suite, targets: tuple[str, ...], seed: int) -> Sources:
    """Split every domain and set the unseen ones apart; training images are augmented where they can be."""
    for target in targets:
        if target not in suite.domains:
            raise DapError(f"{suite.name} has no domain {target!r}; it has {', '.join(suite.domains)}")
    if not set(suite.domains) - set(targets):
        raise DapError(f"every domain of {suite.name} is a target: leave at least one to train on")
    parts = split_suite(suite, seed)
    sources = Sources({}, {}, {})
    for domain, (rest, held_out) in parts.items():
        if domain in targets:
            whole = suite.domains[domain]
            sources.targets[domain] = {"80 %": rest, "20 %": held_out, "all": whole}
        else:
            sources.train[domain] = rest.augmented() if isinstance(rest, Images) else rest
            sources.held_out[domain] = held_out
    return sources


def make_objective(name: str, options: Mapping[str, Any], suite: str) -> Objective:
    if name not in OBJECTIVES:
        raise DapError(f"there is no objective {name!r}; choose one of {', '.join(OBJECTIVES)}")
    try:
        return OBJECTIVES[name](**{**OBJECTIVES[name].defaults_for(suite), **options})
    except TypeError:
        known = ", ".join(OBJECTIVES[name]().options()) or "none"
        raise DapError(f"objective {name!r} does not take {', '.join(options)}; its options: {known}") from None


def train_dense(
    spec: TrainSpec,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    on_step: Callable[[TrainStats], None] | None = None,
) -> dict[str, Any]:
    """Train, save model and objective in `folder`, and evaluate on the unseen domains. A run that was stopped goes on.

    >>> spec = TrainSpec("digits", ("rotated",), backbone="small_resnet", weights=None, train=TrainConfig(steps=2))
    >>> list(train_dense(spec, tmp / "run")["targets"])
    ['rotated']
    """
    engine, folder = engine or Engine(), Path(folder)
    objective = make_objective(spec.objective, spec.options, spec.suite)
    config = spec.train.resolved(spec.suite, spec.objective)
    suite = load_suite(spec.suite, spec.root, spec.pixels, on_corrupt=spec.on_corrupt)
    sources = divide(suite, spec.targets, spec.train.seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(spec.train.seed)
        model = create_classifier(spec.backbone, len(suite.classes), spec.weights)
    dense = train(
        model,
        sources.train,
        config,
        objective=objective,
        validation=sources.held_out,
        checkpoint=folder / "state.safetensors",
        on_step=on_step,
        engine=engine,
    )
    result = _result(spec, dense, sources, engine)
    if engine.first and not dense.interrupted:
        notes = {"suite": suite.name, "targets": list(spec.targets)}
        card = ModelCard(suite.classes, suite.pixels, suite.mean, suite.std, notes)
        save_dense(folder, model, dense.objective, tuple(sources.train), card)
        write_atomic(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def _result(spec: TrainSpec, dense: Dense, sources: Sources, engine: Engine) -> dict[str, Any]:
    assert isinstance(dense.model, Classifier)
    scores = {
        target: {part: accuracy(dense.model, data, ranks=engine.ranks) for part, data in parts.items()}
        for target, parts in sources.targets.items()
    }
    return {
        "spec": asdict(spec),
        "steps": len(dense.losses),
        "interrupted": dense.interrupted,
        "selected": dense.selected,
        "validation": [asdict(score) for score in dense.scores],
        "targets": scores,
    }
