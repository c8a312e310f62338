"""An evaluation as a run: accuracy, and if asked for attacks, corruptions, and what masks tell."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dap.engine import Engine
from dap.errors import DapError
from dap.evaluation.assessment import assess_logits, predictions
from dap.evaluation.attacks import EPSILONS, named, under_attack
from dap.evaluation.autoattack import auto_attack
from dap.evaluation.corruptions import on_corruptions
from dap.evaluation.pixels import InPixels, Joined
from dap.runs.folder import RESULT, as_read, finished, threads, working_in, write_json
from dap.runs.interpreting import interpret
from dap.runs.opening import place_of
from dap.runs.sources import Sources
from dap.runs.subjects import model_names, open_subjects
from dap.specs import EvaluateSpec

Told = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def evaluate_run(
    spec: EvaluateSpec, folder: str | Path, *, engine: Engine | None = None, on_step: Told | None = None
) -> dict[str, Any]:
    """Evaluate the models of a finished run, and write the result to `folder`."""
    engine, folder = engine or Engine(), Path(folder)
    done, run = finished(folder, spec), place_of(spec.run, folder)
    if done is not None:
        if run.exists() and done["content"] != _content(run):
            raise DapError(f"{folder} is about a run that was in {run} before: choose another folder, or remove it")
        return done
    if not run.is_file():
        model_names(run)  # refuses what is no finished run before the folder is ours
    with working_in(folder, spec, engine), threads(spec.threads):
        if (done := finished(folder, spec)) is not None:  # someone else has been faster
            return done
        result = {"spec": asdict(spec), "run": run.name, "content": _content(run)}
        result |= evaluate(spec, run, folder, engine.device, on_step=on_step)
        write_json(folder / RESULT, result)
    return as_read(result)


def _content(run: Path) -> str:
    """What a run came to, or a file holds, in short."""
    return hashlib.sha256((run if run.is_file() else run / RESULT).read_bytes()).hexdigest()


def evaluate(
    spec: EvaluateSpec,
    run: Path,
    folder: Path | None = None,
    device: torch.device | None = None,
    *,
    dense: Path | None = None,
    on_step: Told | None = None,
) -> dict[str, Any]:
    """What `spec` asks about the models of `run`; pictures, if any, go to `folder`."""
    if spec.images is not None and spec.images < 1:
        raise DapError(f"images is {spec.images}; it must be at least 1")
    told = on_step or (lambda *_: None)
    subjects = open_subjects(run, spec.sparsities, dense, spec.root)
    if not spec.with_dense and subjects.masks:
        subjects = replace(subjects, models={name: subjects.models[name] for name in subjects.masks})
    models: dict[str, Any] = {}
    for number, (name, model) in enumerate(subjects.models.items(), 1):
        models[name] = _assess(model.to(device), subjects.sources, subjects.card.class_names)
        told("evaluation", number, len(subjects.models))
    pixels = {name: InPixels(model, subjects.card.mean, subjects.card.std) for name, model in subjects.models.items()}
    domains = _domains(subjects.sources, spec.images)
    if spec.attacks:
        for name, found in _attack(spec, pixels, domains, told).items():
            models[name]["attacks"] = found
    if spec.corruptions:
        for name, found in _corrupt(pixels, domains, told).items():
            models[name]["corruptions"] = found
    result: dict[str, Any] = {"models": models}
    if spec.interpret:
        result["interpretation"] = interpret(run, subjects, folder, told)
    return result


def _assess(model: nn.Module, sources: Sources, classes: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"sources": {}, "targets": {}}
    whole = {}
    for domain, data in sources.held_out.items():
        whole[domain] = assess_logits(*predictions(model, data))
        found["sources"][domain] = {"held out": whole[domain].row(classes)}
    for domain, parts in sources.targets.items():
        seen = {part: predictions(model, data) for part, data in parts.items()}
        logits, labels = (torch.cat(tensors) for tensors in zip(*seen.values(), strict=True))
        whole[domain] = assess_logits(logits, labels)
        found["targets"][domain] = {part: assess_logits(*pair).row(classes) for part, pair in seen.items()}
        found["targets"][domain]["all"] = whole[domain].row(classes)
    worst = min(whole, key=lambda domain: whole[domain].accuracy)
    return {**found, "worst": {"domain": worst, "accuracy": whole[worst].accuracy}}


def _domains(sources: Sources, images: int | None) -> dict[str, Joined]:
    """Held-out images of the sources, and all of the unseen domains, up to so many of each."""
    seen = {domain: Joined([data], images) for domain, data in sources.held_out.items()}
    return seen | {domain: Joined(list(parts.values()), images) for domain, parts in sources.targets.items()}


def _attack(
    spec: EvaluateSpec, models: dict[str, InPixels], domains: dict[str, Joined], told: Told
) -> dict[str, dict[str, Any]]:
    """By model, attack, severity and domain."""
    kinds = [name for name in spec.attacks if name != "auto"]
    options = {"restarts": spec.restarts, "random_start": spec.random_start, "seed": spec.seed}
    plan = [
        (name, severity, attack, domain)
        for name, attacks in (named(",".join(kinds), **options) if kinds else {}).items()
        for severity, attack in enumerate(attacks, 1)
        for domain in domains
    ]
    if "auto" in spec.attacks:
        plan += [("auto", severity, None, domain) for severity in range(1, 6) for domain in domains]
    found: dict[str, dict[str, Any]] = {model: {} for model in models}
    for number, (name, severity, attack, domain) in enumerate(plan, 1):
        if attack is None:
            rows = {
                model: auto_attack(wrapped, domains[domain], EPSILONS[severity - 1], seed=spec.seed)
                for model, wrapped in models.items()
            }
        else:
            rows = under_attack(models, domains[domain], attack)
        for model, row in rows.items():
            found[model].setdefault(name, {}).setdefault(str(severity), {})[domain] = row._asdict()
        told("attacks", number, len(plan))
    return found


def _corrupt(models: dict[str, InPixels], domains: dict[str, Joined], told: Told) -> dict[str, dict[str, Any]]:
    """By model and domain; errors are relative to the dense model's."""
    found = on_corruptions(models, domains, on_step=told)
    rows: dict[str, dict[str, Any]] = {model: {} for model in models}
    for model in models:
        for domain, row in found[model].items():
            rows[model][domain] = {"clean": row.clean, "mean": row.mean, "accuracy": row.accuracy}
            if "dense" in found:
                rows[model][domain]["relative_error"] = row.relative_error(found["dense"][domain])
    return rows
