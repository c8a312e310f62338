"""An evaluation as a run: accuracy, and if asked for attacks, corruptions, and what masks tell."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from statistics import fmean
from typing import Any

import torch
from torch import nn

from dap.errors import DapError
from dap.evaluation.assessment import assess_logits, predictions
from dap.evaluation.attacks import Attack, NotAttackable, under_attack
from dap.evaluation.corruptions import check_corruptible, on_corruptions
from dap.evaluation.pixels import InPixels, Joined
from dap.runs.folder import Metrics, finished, read_metrics, working_in
from dap.runs.interpreting import interpret
from dap.runs.opening import place_of, settled
from dap.runs.sources import Sources
from dap.runs.subjects import Subjects, open_subjects
from dap.runs.trust import names_its_model
from dap.runtime.engine import Engine, threads
from dap.specs.attacks import EPSILONS, attack_named
from dap.specs.file_names import METRICS, SPEC
from dap.specs.run_files import as_read, intact, read_result, read_spec, write_result
from dap.specs.runs import BestSpec, EvaluateSpec, identity

Told = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def evaluate_run(
    spec: EvaluateSpec,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    on_step: Told | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Evaluate the models of a finished run, and write the result to `folder`. What was stopped goes on.

    `trust_code` is that of `open_subjects`. What the specification itself names is trusted.
    """
    engine, folder = engine or Engine(), Path(folder)
    spec = settled(spec, folder).resolved()
    done, run = finished(folder, spec), place_of(spec.run, folder)
    if done is not None:
        if run.exists() and done.get("content") != content_of(run):
            raise DapError(f"{folder} is about a run that was in {run} before: choose another folder, or remove it")
        return done
    subjects = open_to_evaluate(
        spec, run, trust_code=trust_code or _named(spec, run)
    )  # refuses what is wrong before the folder is ours
    with threads(spec.threads), working_in(folder, spec, engine) as log:
        if (done := finished(folder, spec)) is not None:  # someone else has been faster
            return done
        result = {"spec": asdict(spec), "run": run.name, "content": content_of(run)}
        with intact(folder / METRICS):
            cells = Cells(log, result["content"], read_metrics(folder))
        result |= evaluate(spec, run, subjects, folder, engine.device, cells=cells, on_step=on_step)
        write_result(folder, result, SPEC)
    return as_read(result)


def _named(spec: EvaluateSpec, run: Path) -> bool:
    """Whether the specification says all about the run, and the folder holds no other."""
    if isinstance(spec.run, str) or not names_its_model(spec):
        return False
    return isinstance(spec.run, BestSpec) or identity(read_spec(run)) == identity(spec.run)


def content_of(run: Path) -> str:
    """What a run came to, or a file holds, in short; how the run was asked for may be written in other words since."""
    if run.is_file():
        return hashlib.sha256(run.read_bytes()).hexdigest()
    found = {name: value for name, value in read_result(run).items() if name != "spec"}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


class Cells:
    """Parts of an evaluation that are done: kept in the log, so that one that was stopped goes on."""

    def __init__(self, log: Metrics | None = None, content: str = "", rows: Sequence[Mapping[str, Any]] = ()):
        self.log, self.content = log, content
        self.done = {row["cell"]: row["found"] for row in rows if row.get("content") == content and "cell" in row}

    def get(self, cell: str, make: Callable[[], Any]) -> Any:
        if cell not in self.done:
            self.done[cell] = as_read(make())
            if self.log is not None:
                row = {"cell": cell, "found": self.done[cell], "content": self.content}
                self.log.add(stage="evaluation", step=len(self.done), **row)
        return self.done[cell]


def open_to_evaluate(spec: EvaluateSpec, run: Path, dense: Path | None = None, *, trust_code: bool = False) -> Subjects:
    """The models; and at once what cannot be done with them."""
    attacks_of(spec)
    subjects = open_subjects(run, spec.sparsities, dense, spec.root, trust_code=trust_code)
    if spec.corruptions:
        check_corruptible(subjects.card.pixels)
    if not spec.with_dense and subjects.masks:
        subjects = replace(subjects, models={name: subjects.models[name] for name in subjects.masks})
    return subjects


def evaluate(
    spec: EvaluateSpec,
    run: Path,
    subjects: Subjects,
    folder: Path | None = None,
    device: torch.device | None = None,
    *,
    cells: Cells | None = None,
    on_step: Told | None = None,
) -> dict[str, Any]:
    """What `spec` asks about the models of `run`; pictures, if any, go to `folder`."""
    told, cells = on_step or (lambda *_: None), cells or Cells()
    models: dict[str, Any] = {}
    for number, (name, model) in enumerate(subjects.models.items(), 1):
        model.float().to(device)
        models[name] = _assess(name, model, subjects.sources, subjects.card.class_names)
        told("evaluation", number, len(subjects.models))
    pixels = {name: InPixels(model, subjects.card.mean, subjects.card.std) for name, model in subjects.models.items()}
    domains = _domains(subjects.sources, spec.images, spec.per_side)
    result: dict[str, Any] = {"models": models}
    if spec.interpret:  # first: it is soon done, and may find something missing
        result["interpretation"] = interpret(run, subjects, folder, told)
    if spec.attacks:
        for name, found in _attack(spec, pixels, domains, cells, told).items():
            models[name] |= found
    if spec.corruptions:
        for name, found in _corrupt(pixels, domains, told).items():
            models[name]["corruptions"] = found
    return result


def _assess(name: str, model: nn.Module, sources: Sources, classes: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"sources": {}, "targets": {}}
    whole = {}
    for domain, data in sources.held_out.items():
        try:
            whole[domain] = assess_logits(*predictions(model, data, domain=domain))
        except DapError as error:
            raise DapError(f"{name}, on {domain}: {error}") from None
        found["sources"][domain] = {"held out": whole[domain].row(classes)}
    for domain, parts in sources.targets.items():
        seen = {part: predictions(model, data, domain=domain) for part, data in parts.items()}
        logits, labels = (torch.cat(tensors) for tensors in zip(*seen.values(), strict=True))
        whole[domain] = assess_logits(logits, labels)
        found["targets"][domain] = {part: assess_logits(*pair).row(classes) for part, pair in seen.items()}
        found["targets"][domain]["all"] = whole[domain].row(classes)
    worst = min(whole, key=lambda domain: whole[domain].accuracy)
    found["means"] = {
        side: fmean(whole[domain].accuracy for domain in found[side]) for side in ("sources", "targets") if found[side]
    }
    return {**found, "worst": {"domain": worst, "accuracy": whole[worst].accuracy}}


def _domains(sources: Sources, images: int | None, per_side: bool = False) -> dict[str, Joined]:
    """Held-out images of the sources, and all of the unseen domains, up to so many of each, or of each side."""

    def most(domains: int) -> int | None:
        return -(-images // domains) if images is not None and per_side else images

    seen = {domain: Joined([data], most(len(sources.held_out))) for domain, data in sources.held_out.items()}
    unseen = {name: Joined(list(parts.values()), most(len(sources.targets))) for name, parts in sources.targets.items()}
    return seen | unseen


def attacks_of(spec: EvaluateSpec) -> dict[str, dict[int, Attack]]:
    """By name and severity, with the options that each takes."""
    found: dict[str, dict[int, Attack]] = {}
    for name in dict.fromkeys(spec.attacks):
        entry = attack_named(name)
        options = {option: getattr(spec, option) for option in entry.options}
        found[name] = {
            severity: resolve_name(entry.code)(
                epsilon, **options, **{option: values[severity - 1] for option, values in entry.by_severity.items()}
            )
            for severity, epsilon in enumerate(EPSILONS, 1)
            if severity in spec.severities
        }
    return found


def _attack(
    spec: EvaluateSpec, models: dict[str, InPixels], domains: dict[str, Joined], cells: Cells, told: Told
) -> dict[str, dict[str, Any]]:
    """By model: `attacks`, by attack, severity and domain; or `attacks_refused`, and why."""
    kinds = attacks_of(spec)
    plan = [
        (model, name, severity, attack)
        for model in models
        for name, attacks in kinds.items()
        for severity, attack in attacks.items()
    ]
    found: dict[str, dict[str, Any]] = {model: {"attacks": {name: {} for name in kinds}} for model in models}
    for number, (model, name, severity, attack) in enumerate(plan, 1):
        if "attacks" in found[model]:
            make = partial(_attacked, models[model], model, attack, domains)
            try:
                found[model]["attacks"][name][str(severity)] = cells.get(f"{model}, {name} {severity}", make)
            except NotAttackable as error:  # the others can be
                found[model] = {"attacks_refused": str(error)}
        told("attacks", number, len(plan))
    if all("attacks_refused" in one for one in found.values()):
        raise NotAttackable("; ".join(one["attacks_refused"] for one in found.values()))
    return found


def _attacked(model: InPixels, name: str, attack: Attack, domains: dict[str, Joined]) -> dict[str, Any]:
    """By domain."""
    return {domain: row._asdict() for domain, row in under_attack(model, domains, attack, name=name).items()}


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
