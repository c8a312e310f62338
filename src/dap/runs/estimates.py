"""What to expect of a run: its time, memory and disk, from what a few steps of one of its kind cost."""

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dap.config import TrainConfig
from dap.errors import DapError
from dap.runs.opening import trained_of
from dap.specs.attacks import EPSILONS, attack_named
from dap.specs.methods import METHODS
from dap.specs.run_files import read_spec
from dap.specs.runs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, Spec, TrainSpec

_CORRUPTING = 0.008  # seconds of a core for an image at 112 pixels, on average over the corruptions


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
        return dense_of(trained_of(found, Path(spec)) if isinstance(found, PruneSpec) else found)
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
            spec.method: tuning.steps,  # a criterion that trains names its stage after itself
            "fine-tuning": models * tuning.steps,
        }
        models *= 2 if spec.raw else 1
        evaluated = (1 + models) * both + values["finetuned"] * models * _checks(tuning.resolved()) * costs.held_out
        evaluated += values["prune"].get("steps", 0) // (values.get("watch_every") or math.inf) * both
        moved = values["finetuned"] or METHODS[spec.method].trains
        disk = costs.state + models * (costs.masks + moved * costs.model)
    elif isinstance(spec, EvaluateSpec):
        # Beside the sparse models the dense one; a gradient takes as long as three evaluations.
        images = both if spec.images is None else min(both, spec.images * (2 if spec.per_side else costs.domains))
        attacks = [attack_named(name) for name in spec.attacks]
        passes = sum(attack.passes * (spec.restarts if "restarts" in attack.options else 1) for attack in attacks)
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
