"""Mask learning from start to end: snapshots on the way, validation, interruption and exact resume."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from dap.backward import Batches, forward
from dap.checkpoints import checksum, load_state, save_state
from dap.config import PruneConfig
from dap.errors import DapError
from dap.evaluation.accuracy import accuracy
from dap.masking import bake
from dap.masks import Masks
from dap.objectives import Objective
from dap.pruner import Pruner, StepStats
from dap.sources import Source, batch_stream, iter_once, to_device


@dataclass(frozen=True)
class Snapshot:
    """The hard masks at one step, and how well the hard network agrees with the relaxed one on that step's batch."""

    step: int
    masks: Masks
    relaxed_loss: float
    hard_loss: float
    validation: dict[str, float] = field(default_factory=dict)  # accuracy by source domain

    @property
    def sparsity(self) -> float:
        return self.masks.sparsity

    @property
    def accuracy(self) -> float | None:
        """The mean over the sources' validation; None where it was not measured."""
        return sum(self.validation.values()) / len(self.validation) if self.validation else None


@dataclass
class MaskPath:
    """What one run of mask learning passed through, and where it ended."""

    pruner: Pruner
    snapshots: dict[float, Snapshot] = field(default_factory=dict)  # by milestone
    # A row per step: the fields of `StepStats`; where masks were evaluated also `hard_loss` and `validation`.
    history: list[dict[str, Any]] = field(default_factory=list)
    best: Snapshot | None = None  # on source validation; of equals the sparser
    interrupted: bool = False  # by Ctrl-C: the masks are those of the last whole step

    @property
    def masks(self) -> Masks:
        """The final hard masks."""
        return self.pruner.masks()

    def masks_at(self, sparsity: float) -> Masks:
        """Masks of exactly this sparsity, cut from the final ranking."""
        return self.pruner.masks(sparsity=sparsity)


def learn_masks(
    model: nn.Module,
    sources: Mapping[str, Source],
    config: PruneConfig | None = None,
    *,
    objective: Objective | None = None,
    milestones: Sequence[float] = (),
    validation: Mapping[str, Source] | None = None,
    eval_every: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    on_step: Callable[[StepStats], None] | None = None,
) -> MaskPath:
    """Learn masks for `model`, which stays unchanged, from one dataset or iterable of batches per source domain.

    A snapshot is the first hard mask at or past each of `milestones`; one that was not reached is absent. Masks are
    evaluated on `validation` (held-out source images by domain) at every milestone, every `eval_every` steps and at the
    end. With `checkpoint`, a file, the run is saved every `checkpoint_every` steps, and calling again goes on where it
    stopped: to the same bits from datasets, and from iterables that repeat themselves. Ctrl-C ends the run after the
    current step with a usable result; a second one ends it at once.

    >>> images = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    >>> config = PruneConfig(steps=20, target_sparsity=0.5)
    >>> path = learn_masks(nn.Linear(4, 2), {"a": images, "b": images}, config)
    >>> path.masks_at(0.5).sparsity, len(path.history)
    (0.5, 20)
    """
    pruner = Pruner(model, config, objective)
    _check(pruner, sources, milestones, validation or {}, eval_every, checkpoint_every)
    path = MaskPath(pruner)
    if checkpoint is not None and Path(checkpoint).exists():
        _restore(path, checkpoint, list(sources))
    streams = {
        domain: batch_stream(domain, source, pruner.config.batch_size, pruner.config.seed, pruner.steps_done)
        for domain, source in sources.items()
    }
    saved = whole = pruner.steps_done  # whole: the last step that was also looked at

    def save() -> None:
        nonlocal saved
        if checkpoint is not None and saved != whole == pruner.steps_done:
            _save(path, checkpoint, list(sources))
            saved = whole

    with _interruptible() as interrupt:
        try:
            while not (pruner.finished or interrupt.requested):
                batches = to_device({domain: next(stream) for domain, stream in streams.items()}, pruner.device)
                stats = pruner.step(batches)
                path.history.append(stats._asdict())
                _look(path, stats, batches, milestones, validation or {}, eval_every)
                whole = stats.step
                if stats.step % checkpoint_every == 0:
                    save()
                if on_step is not None:
                    on_step(stats)
        except Exception:  # a bad batch, a NaN: nothing that was computed before is lost
            save()
            # Ctrl-C reaches the workers of a loader too, and its complaint is not the user's.
            if not (interrupt.requested and whole == pruner.steps_done):
                raise
        save()
        path.interrupted = interrupt.requested and not pruner.finished
    return path


def _check(
    pruner: Pruner,
    sources: Mapping[str, Source],
    milestones: Sequence[float],
    validation: Mapping[str, Source],
    eval_every: int | None,
    checkpoint_every: int,
) -> None:
    """Refuse at once what would otherwise fail in the middle of a run."""
    if not sources:
        raise DapError("there are no source domains: give at least one")
    for milestone in milestones:
        if not 0 < milestone <= pruner.config.target_sparsity:
            target = pruner.config.target_sparsity
            raise DapError(f"milestone {milestone} is out of reach: it must lie between 0 and target_sparsity={target}")
    for domain, held_out in validation.items():
        if iter_once(held_out) or (hasattr(held_out, "__len__") and len(held_out) == 0):
            raise DapError(f"the validation of domain {domain!r} is empty or can be read only once: give a dataset")
    for name, every in {"eval_every": eval_every, "checkpoint_every": checkpoint_every}.items():
        if every is not None and every < 1:
            raise DapError(f"{name} is {every}; it must be at least 1")


def _look(
    path: MaskPath,
    stats: StepStats,
    batches: Batches,
    milestones: Sequence[float],
    validation: Mapping[str, Source],
    eval_every: int | None,
) -> None:
    """Take the snapshots that this step has reached, and evaluate where it is time, at the end in any case."""
    reached = [m for m in milestones if m not in path.snapshots and stats.sparsity >= m]
    due = path.pruner.finished or (eval_every is not None and stats.step % eval_every == 0)
    if not (reached or due):
        return
    masks = path.pruner.masks()
    sparse = bake(path.pruner.masked.model, masks) if validation else None
    snapshot = Snapshot(
        step=stats.step,
        masks=masks,
        relaxed_loss=stats.loss,
        hard_loss=_hard_loss(path.pruner, masks, batches),
        validation={domain: accuracy(sparse, held_out) for domain, held_out in validation.items()} if sparse else {},
    )
    path.history[-1] |= {"hard_loss": snapshot.hard_loss, "validation": snapshot.validation}
    path.snapshots |= dict.fromkeys(reached, snapshot)
    if validation and (path.best is None or _merit(snapshot) >= _merit(path.best)):
        path.best = snapshot


def _merit(snapshot: Snapshot) -> tuple[float, float]:
    return snapshot.accuracy or 0.0, snapshot.sparsity


def _hard_loss(pruner: Pruner, masks: Masks, batches: Batches) -> float:
    weights = {name: weight * masks[name].to(weight) for name, weight in pruner.masked.weights.items()}
    with torch.no_grad():
        outputs, labels = forward(partial(pruner.masked, weights), batches, joint=True)
    return pruner.objective(outputs, labels).item()  # with gradients: an objective may take its own inside


# ---- interruption and resume


@contextmanager
def _interruptible() -> Iterator[SimpleNamespace]:
    """Inside, the first Ctrl-C only asks to stop, so that no step is left half done."""
    state = SimpleNamespace(requested=False)
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield state
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        state.requested = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before)


def _fingerprint(pruner: Pruner) -> dict[str, int]:
    return {name: checksum(parameter) for name, parameter in pruner.masked.model.state_dict().items()}


def _save(path: MaskPath, checkpoint: str | Path, domains: list[str]) -> None:
    state = path.pruner.state_dict()
    tensors = {f"pruner.{name}": tensor for name, tensor in state.pop("tensors").items()}
    snapshots = {str(milestone): snapshot for milestone, snapshot in path.snapshots.items()}
    if path.best is not None:
        snapshots["best"] = path.best
    rows = {}
    for key, shot in snapshots.items():
        tensors[f"masks.{key}"] = torch.from_numpy(np.frombuffer(shot.masks.to_bytes(), np.uint8).copy())
        rows[key] = [shot.step, shot.relaxed_loss, shot.hard_loss, shot.validation]
    values = {"pruner": state, "model": _fingerprint(path.pruner), "domains": domains}
    values |= {"snapshots": rows, "history": path.history}
    save_state(checkpoint, tensors, values)


def _restore(path: MaskPath, checkpoint: str | Path, domains: list[str]) -> None:
    tensors, values = load_state(checkpoint)
    if values["domains"] != domains:
        raise DapError(f"{checkpoint} belongs to a run on domains {values['domains']}: remove it to start again")
    ours = _fingerprint(path.pruner)
    state = {name.removeprefix("pruner."): t for name, t in tensors.items() if name.startswith("pruner.")}
    path.pruner.load_state_dict({**values["pruner"], "tensors": state})
    for name in {**ours, **values["model"]}:
        if ours.get(name) != values["model"].get(name):
            raise DapError(f"{checkpoint} belongs to another model ({name} differs): remove it to start again")
    path.history = values["history"]
    for key, (step, relaxed_loss, hard_loss, accuracies) in values["snapshots"].items():
        masks = Masks.from_bytes(tensors[f"masks.{key}"].numpy().tobytes(), str(checkpoint))
        snapshot = Snapshot(step, masks, relaxed_loss, hard_loss, accuracies)
        if key == "best":
            path.best = snapshot
        else:
            path.snapshots[float(key)] = snapshot
