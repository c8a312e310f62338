"""The command lines that a run's specification stands for."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dap.config import PruneConfig, TrainConfig
from dap.specs.runs import ModelSpec, PruneSpec, Spec, TrainSpec, folder_name


def commands_of(spec: Spec, out: str | Path) -> list[str]:
    """What makes the run again, after what it needs; none for what only a study can say.

    >>> commands_of(TrainSpec("PACS", ("sketch",), root="data", objective="coral"), "runs/coral")
    ['dap train PACS --targets sketch --root data --objective coral --out runs/coral']
    """
    spec = spec.resolved()
    if isinstance(spec, TrainSpec):
        train = TrainConfig(swad=spec.train.swad).resolved(spec.suite, spec.objective)
        usual = TrainSpec(spec.suite, (), train=replace(train, swad=None))
        return [_command("train", spec.suite, dict(_given(spec, usual, leave=("suite",))), out)] if spec.targets else []
    if not isinstance(spec, PruneSpec):
        return []
    open_, steps = PruneConfig(spec.prune.coefficient), spec.prune.steps  # which other values follow from
    presets = replace(spec, prune=replace(open_, steps=steps)).resolved().prune
    presets = replace(presets, coefficient=PruneConfig.coefficient, steps=open_.resolved().steps)
    given = dict(_given(spec, PruneSpec(spec.dense, prune=presets), leave=("dense",)))
    if isinstance(spec.dense, str):
        return [_command("prune", spec.dense, given, out)]
    if isinstance(spec.dense, ModelSpec):
        own = dict(_given(spec.dense, ModelSpec(spec.dense.model, "").resolved(), leave=("model",)))
        if any(name.startswith("train.") for name in own):  # which the command has no options for
            return []
        return [_command("prune", spec.dense.model, own | given, out)]
    place = Path(out).with_name(f"{folder_name(spec.dense)}-again")
    before = commands_of(spec.dense, place)
    return [*before, _command("prune", str(place), given, out)] if before else []


def _command(verb: str, what: str, options: Mapping[str, str], out: str | Path) -> str:
    words = [word for name, value in {**options, "out": str(out)}.items() for word in (f"--{name}", value)]
    return shlex.join(["dap", verb, what, *words])


def _given(values: Any, usual: Any, leave: tuple[str, ...] = (), prefix: str = "") -> Iterator[tuple[str, str]]:
    """What differs from what is usual, as flags."""
    for part in fields(values):
        value, default = getattr(values, part.name), getattr(usual, part.name)
        if part.name in leave or value == default:
            continue
        name = f"{prefix}{part.name.replace('_', '-')}"
        if is_dataclass(value) and isinstance(default, type(value)):
            yield from _given(value, default, prefix=f"{name}.")
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", _text(item)) for key, item in value.items())
        elif isinstance(value, tuple) and not prefix:
            yield name, ",".join(map(str, value))
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return value if isinstance(value, str) else json.dumps(value)
