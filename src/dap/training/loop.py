"""Dense training from start to end: evaluation, selection on the sources, interruption and exact resume."""

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from dap.config import TrainConfig
from dap.errors import DapError
from dap.evaluation.accuracy import check_validation, score
from dap.masks.masks import Masks
from dap.objectives import Erm, Objective
from dap.objectives.objective import Loss
from dap.runtime.batches import Batches
from dap.runtime.checkpoints import checksums, difference, fingerprint, load_state, save_state, under
from dap.runtime.engine import Engine, run
from dap.runtime.outputs import Outputs
from dap.runtime.reading import reading, require, require_like, require_types
from dap.runtime.sources import Source, batch_stream, check_held_out, is_dataset, iter_once
from dap.runtime.user_models import check_plain, running
from dap.training.norms import estimate_norms
from dap.training.selection import SourceScore, training_domain_validation
from dap.training.step import Trainer, TrainStats

_NORM_BATCHES = 100  # to estimate the statistics of averaged weights from
_SAVED = {
    "identity": dict[str, Any],
    "losses": list[float],
    "watched": dict[str, dict[str, float]],
    "scores": list[dict[str, Any]],
    "steps_done": int,
}


@dataclass
class Dense:
    """A trained model and how it came about."""

    model: nn.Module  # with the selected weights, in eval mode
    objective: Objective  # with what it learned beside the model
    losses: list[float] = field(default_factory=list)  # of every step
    scores: list[SourceScore] = field(default_factory=list)  # of every evaluation
    # Accuracy of every evaluation on the data to watch, by step and name: for reports; selection does not receive it.
    watched: dict[int, dict[str, float]] = field(default_factory=dict)
    selected: int = 0  # the step whose weights the model has; of averaged weights, the last step that went in
    score: SourceScore | None = None  # of those weights
    interrupted: bool = False  # by Ctrl-C
    movement: dict[str, Tensor] = field(default_factory=dict)  # by weight, where it was asked for: −Σ w·∂L/∂w


def train(
    model: nn.Module,
    sources: Mapping[str, Source],
    config: TrainConfig | None = None,
    *,
    objective: Objective | Loss | None = None,
    validation: Mapping[str, Source] | None = None,
    watch: Mapping[str, Source] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 300,
    on_step: Callable[[TrainStats], None] | None = None,
    engine: Engine | None = None,
) -> Dense:
    """Train `model`, in place, on one batch per source domain in each step.

    With `validation`, held-out images by source domain, it ends with the weights of the evaluation that was best on
    them, or with SWAD's average; without, with the last ones. `watch`, such as the splits of an unseen domain, is
    evaluated too and has no influence. With `checkpoint`, a file, the run is saved every `checkpoint_every` steps, and
    calling again goes on where it stopped, to the same bits. Ctrl-C ends it after the current step.

    >>> images = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    >>> dense = train(nn.Linear(4, 2), {"a": images}, TrainConfig(steps=20), validation={"a": images})
    >>> dense.scores[0].step, len(dense.losses)
    (1, 20)
    """
    engine, config = engine or Engine(), (config or TrainConfig()).resolved()
    check_plain(model)
    _check(sources, config, validation or {}, checkpoint_every)
    if engine.device is not None:
        model.to(engine.device)
    objective = Objective.of(objective or Erm())
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        objective.trained = 0
        classes = _classes(model, sources, config)
        with torch.device("cpu"):  # whose generator is seeded: the same start on every device
            objective.prepare(model, tuple(sources), classes)
        objective.to(next(model.parameters()).device)
    trainer = Trainer(model, objective, config, engine.ranks)
    job = _Training(trainer, list(sources), validation or {}, watch or {}, checkpoint)
    return _run(job, sources, engine, checkpoint_every, on_step)


def finetune(
    model: nn.Module,
    masks: Masks | None,
    sources: Mapping[str, Source],
    config: TrainConfig | None = None,
    *,
    objective: Objective | Loss | None = None,
    movement: Collection[str] = (),
    validation: Mapping[str, Source] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 300,
    on_step: Callable[[TrainStats], None] | None = None,
    engine: Engine | None = None,
) -> Dense:
    """Train a pruned model on, in place: weights move, masks stay. Everything else is as in `train`.

    The objective goes on from where dense training left it (in a copy): MIRO's reference stays the pretrained network,
    IRM's penalty its final weight.
    For the weights named in `movement` the result has their movement, −Σ w·∂L/∂w over the steps.

    >>> images = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    >>> masks = Masks({"weight": torch.tensor([[True, False, True, False]] * 2)})
    >>> model = nn.Linear(4, 2)
    >>> finetuned = finetune(model, masks, {"a": images}, TrainConfig(steps=5))
    >>> model.weight[:, 1].tolist()
    [0.0, 0.0]
    """
    engine, config = engine or Engine(), (config or TrainConfig()).resolved()
    _check(sources, config, validation or {}, checkpoint_every)
    if masks is not None:
        masks.check(model)
    if engine.device is not None:
        model.to(engine.device)
    objective = copy.deepcopy(Objective.of(objective or Erm())).to(next(model.parameters()).device)
    trainer = Trainer(model, objective, config, engine.ranks, masks=masks, movement=movement)
    job = _Training(trainer, list(sources), validation or {}, {}, checkpoint)
    return _run(job, sources, engine, checkpoint_every, on_step)


def _run(
    job: "_Training",
    sources: Mapping[str, Source],
    engine: Engine,
    checkpoint_every: int,
    on_step: Callable[[TrainStats], None] | None,
) -> Dense:
    trainer, checkpoint = job.trainer, job.checkpoint
    for held_out in (job.validation, job.watch):
        check_validation(trainer.model, held_out)
    if checkpoint is not None and Path(checkpoint).exists():
        job.restore(checkpoint)
    dense = job.dense
    dense.interrupted = run(
        job,
        sources,
        engine,
        batch_size=trainer.config.batch_size,
        seed=trainer.config.seed,
        save_every=checkpoint_every,
        device=trainer.device,
        on_step=on_step,
    )
    dense.movement = trainer.movement
    job.select(sources)
    return dense


class _Training:
    """Dense training as a job of the engine."""

    def __init__(
        self,
        trainer: Trainer,
        domains: list[str],
        validation: Mapping[str, Source],
        watch: Mapping[str, Source],
        checkpoint: str | Path | None,
    ):
        self.trainer, self.domains = trainer, domains
        self.validation, self.watch, self.checkpoint = validation, watch, checkpoint
        self.dense = Dense(trainer.model, trainer.objective)
        self.best: dict[str, Tensor] = {}  # weights of the best evaluation so far

    @property
    def steps_done(self) -> int:
        return self.trainer.steps_done

    @property
    def finished(self) -> bool:
        return self.trainer.finished or self._has_stopped_improving()

    def _has_stopped_improving(self) -> bool:
        patience, scores = self.trainer.config.patience, self.dense.scores
        if patience is None or not scores:
            return False
        return len(scores) - 1 - scores.index(training_domain_validation(scores)) >= patience

    def fingerprint(self) -> int:
        return fingerprint(self.trainer.model, self.trainer.objective)

    def step(self, batches: Batches) -> TrainStats:
        stats = self.trainer.step(batches)
        every, last = self.trainer.config.check_every, stats.step == self.trainer.config.steps
        if (stats.step - 1) % every == 0 or last:
            self._evaluate(stats.step)
        self.dense.losses.append(stats.loss)
        if not (scores := self.dense.scores):
            return stats
        checked = scores[-1].accuracy if scores[-1].step == stats.step else None
        return stats._replace(best=training_domain_validation(scores).mean_accuracy, validation=checked)

    def _evaluate(self, step: int) -> None:
        model, ranks, dense = self.trainer.model, self.trainer.ranks, self.dense
        if self.validation:
            new = self._score(step)
            if training_domain_validation([*dense.scores, new]) is new and self.trainer.swad is None:
                self.best = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
            if self.trainer.swad is not None:
                self.trainer.swad.close(step, new.mean_loss)
            dense.scores.append(new)
        if self.watch:
            accuracies = {
                name: score(model, data, ranks=ranks, domain=name).accuracy for name, data in self.watch.items()
            }
            dense.watched[step] = accuracies

    def _score(self, step: int) -> SourceScore:
        model, ranks = self.trainer.model, self.trainer.ranks
        scores = {
            domain: score(model, held_out, ranks=ranks, domain=domain) for domain, held_out in self.validation.items()
        }
        accuracies = {domain: found.accuracy for domain, found in scores.items()}
        return SourceScore(step, accuracies, {domain: found.loss for domain, found in scores.items()})

    def select(self, sources: Mapping[str, Source]) -> None:
        """Give the model the weights that the sources speak for."""
        swad, dense = self.trainer.swad, self.dense
        dense.selected = self.steps_done
        if swad is not None and self.steps_done:
            dense.model.load_state_dict(swad.finish())
            if not self.trainer.config.freeze_norms:
                estimate_norms(dense.model, self._more_batches(sources), self.trainer.ranks)
            dense.selected = swad.end or dense.selected
            dense.score = self._score(dense.selected)
        elif self.best:
            dense.model.load_state_dict(self.best)
            dense.score = training_domain_validation(dense.scores)
            dense.selected = dense.score.step

    def _more_batches(self, sources: Mapping[str, Source]) -> Iterator[Batches]:
        """Those that further steps would have seen."""
        config, ranks = self.trainer.config, self.trainer.ranks
        streams = {
            # An iterable begins again: its next batches are a whole training away.
            domain: batch_stream(
                domain, source, config.batch_size, config.seed, config.steps if is_dataset(source) else 0, ranks
            )
            for domain, source in sources.items()
        }
        return ({domain: next(stream) for domain, stream in streams.items()} for _ in range(_NORM_BATCHES))

    # ---- resume

    def _identity(self) -> dict[str, Any]:
        return {
            "config": self.trainer.config.canonical(),
            "start": self.trainer.before,
            "objective": self.trainer.objective.identity(),
            "domains": self.domains,
            "validation": list(self.validation),
            "watch": list(self.watch),
            "model": {name: list(tensor.shape) for name, tensor in self.trainer.model.state_dict().items()},
            "masks": checksums(self.trainer.kept),
            "movement": list(self.trainer.movement),
        }

    def save(self) -> None:
        if self.checkpoint is None:
            return
        tensors, values = self.trainer.state()
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        values |= {"identity": self._identity(), "losses": self.dense.losses, "watched": self.dense.watched}
        values["scores"] = [dataclasses.asdict(row) for row in self.dense.scores]
        save_state(self.checkpoint, tensors, values, "dense training")

    def restore(self, checkpoint: str | Path) -> None:
        tensors, values = load_state(checkpoint, "dense training")
        with reading(checkpoint, "a checkpoint of training", "remove it to start again"):
            require_types(values, _SAVED)
            self._check_owner(values["identity"], checkpoint)
            for row in values["scores"]:
                require_types(row, get_type_hints(SourceScore), only=True)
                require(bool(row["accuracy"]) and row["accuracy"].keys() == row["loss"].keys(), "a score is of nothing")
            self.best = under(tensors, "best.")
            if self.best:
                require_like(self.best, self.trainer.model.state_dict())
            self.trainer.load({name: t for name, t in tensors.items() if not name.startswith("best.")}, values)
            require(len(values["losses"]) == self.steps_done, "it has not a loss for every step")
            self.dense.losses = values["losses"]
            self.dense.watched = {int(step): accuracies for step, accuracies in values["watched"].items()}
            self.dense.scores = [SourceScore(**row) for row in values["scores"]]

    def _check_owner(self, theirs: Mapping[str, Any], checkpoint: str | Path) -> None:
        """The run that it was saved by is this one."""
        ours = self._identity()
        for name in ours:
            if ours[name] != theirs[name]:
                known = difference(theirs[name], ours[name]) if isinstance(ours[name], dict) else theirs[name]
                shown = {"model": "another model", "masks": "other masks"}.get(name, f"{name} {known}")
                raise DapError(f"{checkpoint} belongs to a run with {shown}: remove it to start again")


def _classes(model: nn.Module, sources: Mapping[str, Source], config: TrainConfig) -> int:
    """As many as the model has outputs, seen on one image."""
    if isinstance(count := getattr(model, "classes", None), int):
        return count
    domain, source = next(iter(sources.items()))
    if iter_once(source):
        raise DapError(f"domain {domain!r} can be read only once: give a dataset, or a model that names its `classes`")
    inputs, _ = next(batch_stream(domain, source, 1, config.seed))
    device = next(model.parameters()).device
    with torch.no_grad(), running(model, inputs):
        return Outputs.of(model.eval()(inputs[:1].to(device, copy=True))).logits.shape[1]


def _check(
    sources: Mapping[str, Source], config: TrainConfig, validation: Mapping[str, Source], checkpoint_every: int
) -> None:
    """Refuse at once what would otherwise fail in the middle of a run."""
    if not sources:
        raise DapError("there are no source domains: give at least one")
    if checkpoint_every < 1:
        raise DapError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
    if config.patience is not None and not validation:
        raise DapError("patience is about the validation: give held-out images of the source domains")
    if config.swad is not None and not validation:
        raise DapError("SWAD watches the validation loss: give held-out images of the source domains")
    if config.swad is not None and not config.freeze_norms:
        for domain, source in sources.items():
            if not is_dataset(source) and iter(source) is source:
                needed = "SWAD estimates the statistics of norm layers after the last step"
                raise DapError(f"{needed}, and {domain!r} can be read only once: give a dataset, or freeze the norms")
    check_held_out(validation)
