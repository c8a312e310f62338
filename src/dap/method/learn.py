"""Mask learning from start to end: snapshots on the way, validation, interruption and exact resume."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dap.config import PruneConfig
from dap.errors import DapError
from dap.evaluation.accuracy import accuracy, check_validation
from dap.masks.attach import bake
from dap.masks.masks import Masks
from dap.method.gates import Granularity, by_weight
from dap.method.gradients import loss_of
from dap.method.step import Pruner, StepStats, check_domains
from dap.objectives import Objective
from dap.objectives.objective import Loss
from dap.runtime.batches import Batches
from dap.runtime.checkpoints import checksums, difference, fingerprint, load_state, save_state, under
from dap.runtime.engine import Engine, run
from dap.runtime.reading import reading, require, require_types
from dap.runtime.sources import Source


@dataclass(frozen=True)
class Snapshot:
    """The hard masks at one step, and how well the hard network agrees with the relaxed one on that step's batch."""

    step: int
    masks: Masks
    relaxed_loss: float
    hard_loss: float
    validation: dict[str, float] = field(default_factory=dict)  # accuracy by source domain
    cut: Masks | None = None  # at a milestone: the ranking of this step, cut at exactly that sparsity

    @property
    def sparsity(self) -> float:
        return self.masks.sparsity

    @property
    def accuracy(self) -> float | None:
        """The mean over the sources' validation; None where it was not measured."""
        return sum(self.validation.values()) / len(self.validation) if self.validation else None


_T = TypeVar("_T")


class _ByMilestone(dict[float, _T]):
    """A milestone that was not reached is an error that says which one was."""

    def __missing__(self, milestone: float) -> NoReturn:
        reached = f"the highest that was is {max(self)}" if self else "none was"
        raise DapError(
            f"milestone {milestone} was not reached, {reached}: path.masks_at({milestone}) cuts the final ranking there"
        )


@dataclass
class MaskPath:
    """What one run of mask learning passed through, and where it ended."""

    pruner: Pruner
    snapshots: dict[float, Snapshot] = field(default_factory=_ByMilestone)  # by milestone
    # By milestone, where masks are averaged: the paper's masks of a single step, the first whose λ̃ reaches it, cut
    # there.
    raw: dict[float, Masks] = field(default_factory=_ByMilestone)
    # A row per step: the fields of `StepStats` that have a value.
    history: list[dict[str, Any]] = field(default_factory=list)
    best: Snapshot | None = None  # on source validation; of equals the sparser
    interrupted: bool = False  # by Ctrl-C: the masks are those of the last whole step

    @property
    def masks(self) -> Masks:
        """The final hard masks."""
        return self.pruner.masks()

    def masks_at(self, sparsity: float, *, allow_empty: bool = False) -> Masks:
        """Masks of exactly this sparsity, cut from the final ranking. No layer is emptied unless `allow_empty`."""
        return self.pruner.masks(sparsity, allow_empty=allow_empty)


def learn_masks(
    model: nn.Module,
    sources: Mapping[str, Source],
    config: PruneConfig | None = None,
    *,
    objective: Objective | Loss | None = None,
    milestones: Sequence[float] = (),
    validation: Mapping[str, Source] | None = None,
    watch: Mapping[str, Source] | None = None,
    eval_every: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    on_step: Callable[[StepStats], None] | None = None,
    granularity: Granularity = by_weight,
    engine: Engine | None = None,
) -> MaskPath:
    """Learn masks for `model`, which stays unchanged, from one dataset or iterable of batches per source domain.

    A snapshot is the first hard mask at or past each of `milestones`; one that was not reached is absent. Where logits
    are averaged, `path.raw` has the same cuts without averaging. Masks are
    evaluated on `validation` (held-out source images by domain) at every milestone, every `eval_every` steps and at the
    end; `watch`, such as an unseen domain, is evaluated with it and plays no part in what is selected. With
    `checkpoint`, a file, the run is saved every `checkpoint_every` steps, and calling again goes on where it stopped:
    to the same bits from datasets, and from iterables that repeat themselves. Ctrl-C ends the run after the current
    step with a usable result; a second one ends it at once. With `granularity=find_channels(…)` whole channels are
    learnt, and every sparsity is a share of FLOPs. An `engine` brings devices, precision and several processes.

    >>> images = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    >>> config = PruneConfig(steps=20, target_sparsity=0.5)
    >>> path = learn_masks(nn.Linear(4, 2), {"a": images, "b": images}, config)
    >>> path.masks_at(0.5).sparsity, len(path.history)
    (0.5, 20)
    """
    engine = engine or Engine()
    if engine.device is not None:
        model.to(engine.device)
    pruner = Pruner(model, config, objective, granularity=granularity, ranks=engine.ranks)
    _check(pruner, sources, milestones, validation or {}, watch or {}, eval_every, checkpoint_every)
    path = MaskPath(pruner)
    job = _Learning(path, list(sources), milestones, validation or {}, watch or {}, eval_every, checkpoint)
    if checkpoint is not None and Path(checkpoint).exists():
        _restore(path, checkpoint, job.domains, job.looks())
    path.interrupted = run(
        job,
        sources,
        engine,
        batch_size=pruner.config.batch_size,
        seed=pruner.config.seed,
        save_every=checkpoint_every,
        device=pruner.device,
        on_step=on_step,
    )
    return path


@dataclass(frozen=True)
class _Learning:
    """Mask learning as a job of the engine."""

    path: MaskPath
    domains: list[str]
    milestones: Sequence[float]
    validation: Mapping[str, Source]
    watch: Mapping[str, Source]
    eval_every: int | None
    checkpoint: str | Path | None

    @property
    def steps_done(self) -> int:
        return self.path.pruner.steps_done

    @property
    def finished(self) -> bool:
        return self.path.pruner.finished

    def fingerprint(self) -> int:
        return fingerprint(self.path.pruner.masked.model, self.path.pruner.objective)

    def looks(self) -> dict[str, Any]:
        """Where and at what it looks on its way: what was passed without a look cannot be had later."""
        about = {"milestones": sorted(self.milestones), "eval_every": self.eval_every}
        return about | {"validation": list(self.validation), "watch": list(self.watch)}

    def step(self, batches: Batches) -> StepStats:
        stats = self.path.pruner.step(batches)
        if snapshot := self._look(stats, batches):
            watched = self._accuracies(snapshot.masks, self.watch) or None
            stats = stats._replace(hard_loss=snapshot.hard_loss, validation=snapshot.validation, watched=watched)
        self.path.history.append(stats.row())
        return stats

    def _look(self, stats: StepStats, batches: Batches) -> Snapshot | None:
        """Take the snapshots that this step has reached, and evaluate where it is time, at the end in any case."""
        path = self.path
        if path.pruner.config.average:
            early = [m for m in self.milestones if m not in path.raw and stats.raw_sparsity >= m]
            path.raw |= {milestone: path.pruner.masks(milestone, raw=True) for milestone in early}
        reached = [m for m in self.milestones if m not in path.snapshots and stats.sparsity >= m]
        due = path.pruner.finished or (self.eval_every is not None and stats.step % self.eval_every == 0)
        if not (reached or due):
            return None
        masks = path.pruner.masks()
        scores = self._accuracies(masks, self.validation)
        hard_loss = _hard_loss(path.pruner, masks, batches)
        snapshot = Snapshot(stats.step, masks, relaxed_loss=stats.loss, hard_loss=hard_loss, validation=scores)
        path.snapshots |= {milestone: replace(snapshot, cut=path.pruner.masks(milestone)) for milestone in reached}
        if self.validation and (path.best is None or _merit(snapshot) >= _merit(path.best)):
            path.best = snapshot
        return snapshot

    def _accuracies(self, masks: Masks, data: Mapping[str, Source]) -> dict[str, float]:
        pruner = self.path.pruner
        if not data:
            return {}
        sparse = bake(pruner.masked.model, masks)
        return {name: accuracy(sparse, images, ranks=pruner.ranks, domain=name) for name, images in data.items()}

    def save(self) -> None:
        if self.checkpoint is not None:
            _save(self.path, self.checkpoint, {"domains": self.domains, "looks": self.looks()})


def _check(
    pruner: Pruner,
    sources: Mapping[str, Source],
    milestones: Sequence[float],
    validation: Mapping[str, Source],
    watch: Mapping[str, Source],
    eval_every: int | None,
    checkpoint_every: int,
) -> None:
    """Refuse at once what would otherwise fail in the middle of a run."""
    check_domains(pruner.config, sources)
    for milestone in milestones:
        if not 0 < milestone <= pruner.config.target_sparsity:
            target = pruner.config.target_sparsity
            raise DapError(f"milestone {milestone} is out of reach: it must lie between 0 and target_sparsity={target}")
    if milestones:
        pruner.masks(max(milestones))  # an error if it would not leave every layer something
    for held_out in (validation, watch):
        check_validation(pruner.masked.model, held_out)
    for name, every in {"eval_every": eval_every, "checkpoint_every": checkpoint_every}.items():
        if every is not None and every < 1:
            raise DapError(f"{name} is {every}; it must be at least 1")


def _merit(snapshot: Snapshot) -> tuple[float, float]:
    return snapshot.accuracy or 0.0, snapshot.sparsity


def _hard_loss(pruner: Pruner, masks: Masks, batches: Batches) -> float:
    parameters = dict(pruner.masked.model.named_parameters())
    weights = {name: parameters[name].detach() * masks[name].to(parameters[name]) for name in masks}
    return loss_of(pruner.network, pruner.objective, weights, batches, pruner.ranks)


# ---- resume

_SAVED = {
    "domains": list[str],
    "pruner": dict[str, Any],
    "model": dict[str, int],
    "objective": tuple[dict[str, Any], dict[str, int]],
    "history": list[dict[str, Any]],
    "snapshots": dict[str, tuple[int, float, float, dict[str, float]]],
}


def _identity(pruner: Pruner) -> dict[str, Any]:
    objective = [pruner.objective.identity(), checksums(pruner.objective.state_dict())]
    return {"model": checksums(pruner.masked.model.state_dict()), "objective": objective}


def _save(path: MaskPath, checkpoint: str | Path, asked: Mapping[str, Any]) -> None:
    state = path.pruner.state_dict()
    tensors = {f"pruner.{name}": tensor for name, tensor in state.pop("tensors").items()}
    snapshots = {str(milestone): snapshot for milestone, snapshot in path.snapshots.items()}
    if path.best is not None:
        snapshots["best"] = path.best
    rows = {}
    tensors |= {f"raw.{milestone}": _packed(masks) for milestone, masks in path.raw.items()}
    for key, shot in snapshots.items():
        tensors[f"masks.{key}"] = _packed(shot.masks)
        if shot.cut is not None:
            tensors[f"cut.{key}"] = _packed(shot.cut)
        rows[key] = [shot.step, shot.relaxed_loss, shot.hard_loss, shot.validation]
    values = {"pruner": state, **asked} | _identity(path.pruner)
    values |= {"snapshots": rows, "history": path.history}
    save_state(checkpoint, tensors, values, "mask learning")


def _packed(masks: Masks) -> Tensor:
    return torch.from_numpy(np.frombuffer(masks.to_bytes(), np.uint8).copy())


def _restore(path: MaskPath, checkpoint: str | Path, domains: list[str], looks: dict[str, Any]) -> None:
    tensors, values = load_state(checkpoint, "mask learning")
    with reading(checkpoint, "a checkpoint of mask learning", "remove it to start again"):
        require_types(values, _SAVED)
        if values["domains"] != domains:
            raise DapError(f"{checkpoint} belongs to a run on domains {values['domains']}: remove it to start again")
        if known := difference(values.get("looks", looks), looks):  # earlier versions did not keep them
            raise DapError(f"{checkpoint} belongs to a run with {known}: ask for the same, or remove it to start again")
        path.pruner.load_state_dict({**values["pruner"], "tensors": under(tensors, "pruner.")})
        _check_owner(path.pruner, values, checkpoint)
        require(len(values["history"]) == path.pruner.steps_done, "its history is of another length")
        path.history = values["history"]
        _restore_masks(path, tensors, values["snapshots"], checkpoint)


def _check_owner(pruner: Pruner, values: Mapping[str, Any], checkpoint: str | Path) -> None:
    """It was saved for this model and this objective."""
    ours, theirs = _identity(pruner), values["model"]
    for name in {**ours["model"], **theirs}:
        if ours["model"].get(name) != theirs.get(name):
            raise DapError(f"{checkpoint} belongs to another model ({name} differs): remove it to start again")
    if ours["objective"] != values["objective"]:
        known = difference(values["objective"][0], ours["objective"][0])
        raise DapError(f"{checkpoint} belongs to another objective ({known or 'its state'}): remove it to start again")


def _restore_masks(
    path: MaskPath, tensors: Mapping[str, Tensor], rows: Mapping[str, Any], checkpoint: str | Path
) -> None:
    def masks_of(name: str) -> Masks:
        require(tensors[name].dtype == torch.uint8 and tensors[name].ndim == 1, f"{name} is not a vector of bytes")
        masks = Masks.from_bytes(tensors[name].numpy().tobytes(), str(checkpoint))
        masks.check(path.pruner.masked.model)
        return masks

    path.raw |= {float(milestone): masks_of(f"raw.{milestone}") for milestone in under(tensors, "raw.")}
    for key, (step, relaxed_loss, hard_loss, accuracies) in rows.items():
        cut = masks_of(f"cut.{key}") if f"cut.{key}" in tensors else None
        snapshot = Snapshot(step, masks_of(f"masks.{key}"), relaxed_loss, hard_loss, accuracies, cut)
        if key == "best":
            path.best = snapshot
        else:
            path.snapshots[float(key)] = snapshot
