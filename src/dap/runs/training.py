"""Dense training as a run: from a specification to a folder with its result."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from dap.config import TrainConfig
from dap.data import Suite, load_suite
from dap.dense import save_dense
from dap.engine import Engine
from dap.errors import DapError
from dap.files import write_atomic
from dap.models import Classifier, ModelCard, create_classifier
from dap.objectives import OBJECTIVES, Objective
from dap.runs.folder import RESULT, SPEC, claim
from dap.runs.sources import Sources, divide, on_targets
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
    dropout: float = 0.0
    stride_in_1x1: bool = False  # where a ResNet's first blocks halve the image: as in its original weights
    objective: str = "erm"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the objective
    train: TrainConfig = field(default_factory=TrainConfig)


def make_objective(name: str, options: Mapping[str, Any], suite: str) -> Objective:
    if name not in OBJECTIVES:
        raise DapError(f"there is no objective {name!r}; choose one of {', '.join(OBJECTIVES)}")
    known = OBJECTIVES[name]().options()
    for option, value in options.items():
        if option not in known:
            raise DapError(f"objective {name!r} does not take {option}; its options: {', '.join(known) or 'none'}")
        if isinstance(value, str) or isinstance(known[option], list) != isinstance(value, list | tuple):
            raise DapError(f"option {option} of objective {name!r} is {value!r}; its default is {known[option]!r}")
    return OBJECTIVES[name](**{**OBJECTIVES[name].defaults_for(suite), **options})


def read_spec(folder: str | Path) -> TrainSpec:
    """The specification of the dense training in `folder`."""
    file = Path(folder) / SPEC
    if not file.is_file():
        raise DapError(f"no {SPEC} in {folder}: give the folder of a dense training")
    values = json.loads(file.read_text())
    known = {part.name for part in fields(TrainSpec)}
    if not {"suite", "targets", "train"} <= set(values) <= known:
        raise DapError(f"{file} is not that of a dense training, or of another version of dap: train again")
    values |= {"targets": tuple(values["targets"]), "train": TrainConfig.from_dict(values["train"])}
    return TrainSpec(**values)


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
    sources = divide(suite, spec.targets, config.seed)
    model = _build(spec, suite, config.seed)
    claim(folder, spec, engine)
    dense = train(
        model,
        sources.train,
        config,
        objective=objective,
        validation=sources.held_out,
        watch={f"{target} {part}": data for target, parts in sources.targets.items() for part, data in parts.items()},
        checkpoint=folder / "state.safetensors",
        on_step=on_step,
        engine=engine,
    )
    result = _result(spec, dense, sources, engine)
    if engine.first and not dense.interrupted:
        notes = {"suite": suite.name, "targets": list(spec.targets)}
        card = ModelCard(suite.classes, suite.pixels, suite.mean, suite.std, notes)
        save_dense(folder, model, dense.objective, tuple(sources.train), card)
        write_atomic(folder / RESULT, json.dumps(result, indent=1).encode())
    return result


def _build(spec: TrainSpec, suite: Suite, seed: int) -> Classifier:
    options: dict[str, Any] = {}
    if spec.backbone != "small_resnet":  # it takes images of any size, and has no such options
        options = {"pixels": suite.pixels, "dropout": spec.dropout, "stride_in_1x1": spec.stride_in_1x1}
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return create_classifier(spec.backbone, len(suite.classes), spec.weights, **options)


def _result(spec: TrainSpec, dense: Dense, sources: Sources, engine: Engine) -> dict[str, Any]:
    result = {
        "spec": asdict(spec),
        "steps": len(dense.losses),
        "interrupted": dense.interrupted,
        "selected": dense.selected,
        "score": None if dense.score is None else asdict(dense.score),
        "validation": [asdict(score) for score in dense.scores],
        "targets": {},
        # For the oracle, `evaluation.oracle`, and for curves. Nothing was selected by it.
        "watched, not selected by": dense.watched,
    }
    if not dense.interrupted:
        result["targets"] = on_targets(dense.model, sources, engine.ranks)
    return result
