"""A few steps of a run, to tell how long all of it will take and what it needs. Nothing is kept."""

import json
import math
import os
import resource
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from dap.config import TrainConfig
from dap.criteria import Calibration, News
from dap.data import Suite, load_suite
from dap.data.cache import cache_folder, missing
from dap.data.suites import list_suite
from dap.engine import Engine, threads
from dap.errors import DapError
from dap.evaluation import score
from dap.evaluation.attacks import EPSILONS
from dap.layout import STATE
from dap.masking import maskable_weights
from dap.objectives import Objective
from dap.pruning import prune
from dap.runs.folder import read_spec
from dap.runs.opening import open_model, place_of
from dap.runs.sources import Sources, divide
from dap.runs.training import build, make_objective
from dap.sources import Batch, batch_stream, take
from dap.specs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, Spec, TrainSpec
from dap.training import train

_STEPS = 6  # that are timed; the first and the last do more than the others
_IMAGES = 64  # that are evaluated
_CORRUPTING = 0.008  # seconds of a core for an image at 112 pixels, on average over the corruptions
# Evaluations of an image that an attack at all severities amounts to.
_PASSES = {"fgsm": 5 * 8, "pgd": 40 * 3 + 5 * 8, "auto": 5 * 7000}


@dataclass(frozen=True)
class Costs:
    """What was measured."""

    step: dict[str, float]  # seconds of a step, by stage
    opening: float  # seconds before the first step
    image: float  # seconds to evaluate one
    held_out: int  # images
    unseen: int
    domains: int
    pixels: int  # of a side
    decoding: float  # seconds, once, for images that were never decoded
    cache: int  # bytes that they take
    state: int  # bytes of a checkpoint
    model: int
    masks: int
    memory: int  # bytes at the peak
    gpu_memory: int


@dataclass(frozen=True)
class Estimate:
    """What is expected of a run."""

    seconds: dict[str, float]  # by what they are spent on
    memory: int  # bytes at the peak
    gpu_memory: int
    disk: int  # bytes in the run's folder
    decoding: float = 0.0  # seconds, once for all runs on the same images
    cache: int = 0  # bytes, once for all runs on the same images


def rehearse(spec: Spec, engine: Engine | None = None) -> Estimate:
    """What to expect of a run, from a few steps of it."""
    return expect(spec, measure(spec, engine or Engine()))


def kind_of(spec: Spec) -> str:
    """Runs of one kind take the same time for a step."""
    dense = dense_of(spec)
    shape: list[Any] = [dense.suite, len(dense.targets), dense.pixels]
    if isinstance(dense, TrainSpec):
        shape += [dense.backbone, dense.dropout > 0, dense.objective, dense.train.batch_size, dense.train.swad is None]
    else:
        shape += [dense.model]
    if isinstance(spec, PruneSpec):
        values = spec.canonical()
        shape += [spec.method, values["allocation"], values["finetuned"]]
        shape += [values["prune"][name] for name in ("include", "exclude", "batch_size")]
    return json.dumps([spec.kind, shape, getattr(spec, "threads", None)])


def dense_of(spec: Spec | ModelSpec | str) -> TrainSpec | ModelSpec:
    """The dense model, and the images, that a run is about."""
    if isinstance(spec, str):
        if Path(spec).is_file():
            raise DapError(f"{spec} is a file, and a rehearsal needs the folder of a run")
        found = read_spec(spec)
        if isinstance(found, PruneSpec) and isinstance(found.dense, str):
            return dense_of(str(place_of(found.dense, Path(spec))))
        return dense_of(found)
    if isinstance(spec, BestSpec):
        return spec.candidates[0]
    if isinstance(spec, PruneSpec | EvaluateSpec):
        found = dense_of(spec.dense if isinstance(spec, PruneSpec) else spec.run)
        return found if spec.root is None else replace(found, root=spec.root)
    return spec


def expect(spec: Spec, costs: Costs) -> Estimate:
    """Costs may be those of another run of the same kind."""
    both = costs.held_out + costs.unseen
    if isinstance(spec, TrainSpec):
        config = spec.resolved().train
        steps = {"training": config.steps}
        evaluated = _checks(config) * both + costs.unseen
        disk = costs.state + costs.model
    elif isinstance(spec, PruneSpec):
        values, models = spec.canonical(), _models(spec)
        tuning = spec.finetune.over(dense_of(spec).resolved().train)
        tuning = replace(tuning, steps=values.get("finetune", {}).get("steps", 1))
        steps = {
            "mask learning": values["prune"].get("steps", 0),
            "scoring": spec.batches,
            "movement": tuning.steps,
            "fine-tuning": models * tuning.steps,
        }
        models *= 2 if spec.raw else 1
        evaluated = (1 + models) * both + values["finetuned"] * models * _checks(tuning.resolved()) * costs.held_out
        evaluated += values["prune"].get("steps", 0) // (values.get("watch_every") or math.inf) * both
        moved = values["finetuned"] or spec.method == "movement"
        disk = costs.state + models * (costs.masks + moved * costs.model)
    elif isinstance(spec, EvaluateSpec):
        # Beside the sparse models the dense one; a gradient takes as long as three evaluations.
        images = both if spec.images is None else min(both, spec.images * (2 if spec.per_side else costs.domains))
        passes = sum(_PASSES[name] * (spec.restarts if name == "pgd" else 1) for name in spec.attacks)
        passes = passes * len(set(spec.severities)) // len(EPSILONS)
        passes += 75 * spec.corruptions
        run = read_spec(spec.run) if isinstance(spec.run, str) else spec.run
        models = _models(spec) + (spec.with_dense and isinstance(run, PruneSpec))
        steps, evaluated, disk = {}, models * (both + passes * images), 0
        if spec.corruptions:  # which others may have made
            side, corrupted = costs.pixels, 75 * images
            return Estimate(
                {
                    "opening": costs.opening,
                    "corrupting": corrupted * _CORRUPTING * (side / 112) ** 2 / (os.cpu_count() or 1),
                    "evaluation": evaluated * costs.image,
                },
                costs.memory,
                costs.gpu_memory,
                disk,
                costs.decoding,
                costs.cache + corrupted * 3 * side**2,
            )
    else:  # a choice among results
        return Estimate({}, 0, 0, 0)
    seconds = {"opening": costs.opening}
    seconds |= {stage: steps[stage] * each for stage, each in costs.step.items()}
    seconds["evaluation"] = evaluated * costs.image
    return Estimate(seconds, costs.memory, costs.gpu_memory, disk, costs.decoding, costs.cache)


def _checks(config: TrainConfig) -> int:
    """After step 1, every so many steps, and at the end."""
    return 1 + math.ceil((config.steps - 1) / config.check_every)


def _models(spec: Spec | ModelSpec | str) -> int:
    """How many models a run makes, or evaluates."""
    if isinstance(spec, str):
        return _models(read_spec(spec))
    if isinstance(spec, EvaluateSpec):
        return len(spec.sparsities or ()) or _models(spec.run)
    return len(spec.canonical()["sparsities"] or (None,)) if isinstance(spec, PruneSpec) else 1


# ---- measuring


class _Clock:
    """When steps ended, by stage."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    def tick(self, stage: str) -> None:
        self.times[stage].append(time.perf_counter())

    def seconds(self) -> dict[str, float]:
        """Of a step that does nothing but step: from the end of the first to that of the last but one."""
        return {
            stage: statistics.median(after - before for before, after in pairwise(times[:-1]))
            for stage, times in self.times.items()
        }


@dataclass(frozen=True)
class _Stage:
    """What a rehearsal needs."""

    model: nn.Module
    objective: Objective
    train: TrainConfig
    batches: dict[str, list[Batch]]
    engine: Engine
    state: Path
    clock: _Clock = field(default_factory=_Clock)

    @property
    def validation(self) -> dict[str, list[Batch]]:
        return {domain: batches[:1] for domain, batches in self.batches.items()}


def measure(spec: Spec, engine: Engine) -> Costs:
    """Take a few steps, with a model that need not be trained: it takes as long."""
    dense = dense_of(spec)
    spec = spec.resolved(dense.suite) if isinstance(spec, PruneSpec) else spec
    size = dense.train.batch_size if isinstance(spec, TrainSpec) else getattr(spec, "prune", dense.train).batch_size
    with TemporaryDirectory() as folder, threads(getattr(spec, "threads", None)):
        start = time.perf_counter()
        suite, absent = _suite(dense)
        sources = divide(suite, dense.targets, dense.train.seed)
        if isinstance(dense, TrainSpec) and not isinstance(spec, TrainSpec):
            dense = replace(dense, weights=None)  # which training began with, and nothing else needs
        model, objective = _open(dense, suite, sources)
        if engine.device is not None:
            model.to(engine.device)
        opening = time.perf_counter() - start
        start = time.perf_counter()
        streams = {domain: batch_stream(domain, source, size, seed=0) for domain, source in sources.train.items()}
        batches = {domain: [next(stream) for _ in range(_STEPS)] for domain, stream in streams.items()}
        drawing = (time.perf_counter() - start) / _STEPS
        stage = _Stage(model, objective, dense.train, batches, engine, Path(folder) / STATE)
        if isinstance(spec, TrainSpec):
            _train(stage, spec)
        elif isinstance(spec, PruneSpec):
            _prune(stage, spec)
        seconds = stage.clock.seconds()
        if not absent:  # steps draw from decoded images, and do it themselves
            seconds = {name: each + drawing for name, each in seconds.items()}
        return Costs(
            step=seconds,
            opening=opening,
            image=_seconds_per_image(model, sources),
            held_out=sum(map(len, sources.held_out.values())),
            unseen=sum(len(part) for parts in sources.targets.values() for part in parts.values()),
            domains=len(suite.domains),
            pixels=suite.pixels,
            decoding=absent * drawing / (size * len(batches)),
            cache=absent * 3 * suite.pixels**2,
            state=sum(file.stat().st_size for file in Path(folder).iterdir()),
            model=sum(tensor.nbytes for tensor in model.state_dict().values()),
            masks=_bytes_of_masks(spec, model),
            memory=_peak(),
            gpu_memory=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        )


def _suite(spec: TrainSpec | ModelSpec) -> tuple[Suite, int]:
    """The images, and how many are not decoded yet: a rehearsal does not wait for all of them."""
    absent = 0
    if spec.suite != "digits":
        absent = missing(list_suite(spec.suite, spec.root).domains.values(), spec.pixels, cache_folder())
    if absent:  # to skip damaged images all of them would have to be looked at
        return load_suite(spec.suite, spec.root, spec.pixels, cache=False), absent
    return load_suite(spec.suite, spec.root, spec.pixels, on_corrupt=spec.on_corrupt), 0


def _open(dense: TrainSpec | ModelSpec, suite: Suite, sources: Sources) -> tuple[nn.Module, Objective]:
    if isinstance(dense, ModelSpec):
        opened = open_model(dense, suite)
        return opened.model, opened.objective
    model, objective = build(dense, suite), make_objective(dense.objective, dense.options, dense.suite)
    objective.prepare(model, tuple(sources.train), len(suite.classes))
    return model.eval(), objective


def _train(stage: _Stage, spec: TrainSpec) -> None:
    config = replace(spec.resolved().train, steps=_STEPS, check_every=_STEPS)
    train(
        stage.model,
        stage.batches,
        config,
        objective=stage.objective,
        validation=stage.validation,
        checkpoint=stage.state,
        on_step=lambda stats: stage.clock.tick("training"),
        engine=stage.engine,
    )


def _prune(stage: _Stage, spec: PruneSpec) -> None:
    def tick(news: News) -> None:
        stage.clock.tick("fine-tuning" if news.stage.startswith("fine-tuning") else news.stage)

    data = Calibration(
        stage.batches,
        stage.objective,
        batches=_STEPS,
        batch_size=spec.prune.batch_size,
        checkpoint=stage.state,
        on_step=tick,
        engine=stage.engine,
    )
    models = prune(
        stage.model,
        data,
        spec.method,
        spec.sparsities and spec.sparsities[:1],
        allocation=spec.allocation,
        finetuned=spec.finetuned,
        recalibrated=spec.recalibrated,
        raw=spec.raw,
        config=replace(spec.prune, steps=_STEPS),
        train=replace(spec.finetune.over(stage.train), steps=_STEPS, check_every=_STEPS),
        validation=stage.validation,
    )
    next(models)  # the others take as long


def _seconds_per_image(model: nn.Module, sources: Sources) -> float:
    held_out = next(iter(sources.held_out.values()))
    images = min(_IMAGES, len(held_out))
    if images == 0:
        raise DapError("a source domain has no held-out images")
    seconds = 0.0
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        score(model, [take(held_out, torch.arange(images))])
        seconds = time.perf_counter() - start
    return seconds / images


def _bytes_of_masks(spec: Spec, model: nn.Module) -> int:
    if not isinstance(spec, PruneSpec):
        return 0
    weights = maskable_weights(model, spec.prune.include, spec.prune.exclude)
    return sum(weight.numel() for weight in weights.values()) // 8


def _peak() -> int:
    """Of this process, in bytes: what it has used at most so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
