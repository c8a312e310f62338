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
from dap.sources import Source, batch_stream, next_batches


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

    A snapshot is the first hard mask at or past each of `milestones`. Masks are evaluated on `validation` (held-out
    source images by domain) at every milestone and every `eval_every` steps. With `checkpoint`, a file, the run is
    saved every `checkpoint_every` steps, and calling again goes on where it stopped, to the same bits. Ctrl-C ends the
    run after the current step with a usable result; a second one ends it at once.

    >>> images = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    >>> config = PruneConfig(steps=20, target_sparsity=0.5)
    >>> path = learn_masks(nn.Linear(4, 2), {"a": images, "b": images}, config)
    >>> path.masks_at(0.5).sparsity, len(path.history)
    (0.5, 20)
    """
    pruner = Pruner(model, config, objective)
    if not sources:
        raise DapError("there are no source domains: give at least one")
    for milestone in milestones:
        if not 0 < milestone <= pruner.config.target_sparsity:
            target = pruner.config.target_sparsity
            raise DapError(f"milestone {milestone} is out of reach: it must lie between 0 and target_sparsity={target}")
    path = MaskPath(pruner)
    if checkpoint is not None and Path(checkpoint).exists():
        _restore(path, checkpoint)
    streams = {
        domain: batch_stream(domain, source, pruner.config.batch_size, pruner.config.seed, pruner.steps_done)
        for domain, source in sources.items()
    }
    saved = pruner.steps_done

    def save() -> None:
        nonlocal saved
        if checkpoint is not None and saved != pruner.steps_done:
            _save(path, checkpoint)
            saved = pruner.steps_done

    with _interruptible() as interrupt:
        try:
            while not (_ended(path) or interrupt.requested):
                batches = next_batches(streams, pruner.device)
                stats = pruner.step(batches)
                path.history.append(stats._asdict())
                _look(path, stats, batches, milestones, validation or {}, eval_every)
                if stats.step % checkpoint_every == 0:
                    save()
                if on_step is not None:
                    on_step(stats)
        except Exception:  # a bad batch, a NaN: the steps before it are whole
            save()
            raise
        save()
        path.interrupted = interrupt.requested and not _ended(path)
    return path


def _ended(path: MaskPath) -> bool:
    stop_at = path.pruner.config.stop_at
    reached = stop_at is not None and bool(path.history) and path.history[-1]["sparsity"] >= stop_at
    return reached or path.pruner.finished


def _look(
    path: MaskPath,
    stats: StepStats,
    batches: Batches,
    milestones: Sequence[float],
    validation: Mapping[str, Source],
    eval_every: int | None,
) -> None:
    """Take the snapshots that this step has reached, and evaluate where it is time."""
    reached = [m for m in milestones if m not in path.snapshots and stats.sparsity >= m]
    if not reached and not (eval_every and stats.step % eval_every == 0):
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


@torch.no_grad()
def _hard_loss(pruner: Pruner, masks: Masks, batches: Batches) -> float:
    weights = {name: weight * masks[name].to(weight) for name, weight in pruner.masked.weights.items()}
    return pruner.objective(*forward(partial(pruner.masked, weights), batches, joint=True)).item()


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


def _save(path: MaskPath, checkpoint: str | Path) -> None:
    state = path.pruner.state_dict()
    tensors = {f"pruner.{name}": tensor for name, tensor in state.pop("tensors").items()}
    snapshots = {str(milestone): snapshot for milestone, snapshot in path.snapshots.items()}
    if path.best is not None:
        snapshots["best"] = path.best
    rows = {}
    for key, shot in snapshots.items():
        tensors[f"masks.{key}"] = torch.from_numpy(np.frombuffer(shot.masks.to_bytes(), np.uint8).copy())
        rows[key] = [shot.step, shot.relaxed_loss, shot.hard_loss, shot.validation]
    values = {"pruner": state, "model": _fingerprint(path.pruner), "snapshots": rows, "history": path.history}
    save_state(checkpoint, tensors, values)


def _restore(path: MaskPath, checkpoint: str | Path) -> None:
    tensors, values = load_state(checkpoint)
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
