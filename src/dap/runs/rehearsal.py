"""A few steps of a run, to tell how long all of it will take and what it needs. Nothing is kept."""

import resource
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from dap.config import TrainConfig
from dap.criteria import Calibration, News
from dap.criteria.prune import prune
from dap.data import Suite, load_suite
from dap.data.cache import cache_folder, missing
from dap.data.suites import list_suite
from dap.errors import DapError
from dap.evaluation import score
from dap.masks.attach import maskable_weights
from dap.objectives import Objective
from dap.runs.estimates import Costs, Estimate, dense_of, expect
from dap.runs.opening import open_model
from dap.runs.sources import Sources, divide
from dap.runs.training import build, make_objective
from dap.runs.trust import check_code, names_its_model
from dap.runtime.engine import Engine, threads
from dap.runtime.offline import local_only
from dap.runtime.sources import Batch, batch_stream, take
from dap.specs.file_names import STATE
from dap.specs.runs import ModelSpec, PruneSpec, Spec, TrainSpec
from dap.training.loop import train

_STEPS = 6  # that are timed; the first and the last do more than the others
_IMAGES = 64  # that are evaluated


def rehearse(spec: Spec, engine: Engine | None = None, *, trust_code: bool = False) -> Estimate:
    """What to expect of a run, from a few steps of it. `trust_code` is that of the run itself."""
    trust_code = trust_code or names_its_model(spec)
    check_code(dense_of(spec), trust_code)
    with local_only(unless=trust_code):
        return expect(spec, measure(spec, engine or Engine()))


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
    with torch.device("cpu"):
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
    domain, held_out = next(iter(sources.held_out.items()))
    images = min(_IMAGES, len(held_out))
    if images == 0:
        raise DapError(f"source domain {domain!r} has no held-out images")
    seconds = 0.0
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        score(model, [take(held_out, torch.arange(images, device="cpu"))], domain=domain)
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
