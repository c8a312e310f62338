"""Any method on equal terms: a criterion scores the weights, an allocation cuts, and what comes out is of one kind."""

import math
import re
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dap.config import UNSET, PruneConfig, TrainConfig
from dap.criteria import CRITERIA, Calibration, News, Scores
from dap.errors import DapError
from dap.masks.allocation import ALLOCATIONS, n_of_m
from dap.masks.attach import MaskedModel, bake, every_weight, is_transposed, maskable_weights, warn_unused
from dap.masks.masks import Masks
from dap.masks.observation import order_of_use
from dap.method.step import check_domains
from dap.runtime.sources import Source
from dap.specs.file_names import folder_of
from dap.specs.methods import BY_FLOPS, METHODS
from dap.structure import Channels, find_channels
from dap.training.loop import finetune
from dap.training.norms import estimate_norms, norms_of
from dap.training.step import TrainStats

_BY_CHANNEL = ("channels", "global_channels")


@dataclass(frozen=True)
class Pruned:
    """One sparse model."""

    wished: str  # the sparsity that was asked for, as in "0.8", or the pattern, as in "2:4"
    masks: Masks
    model: nn.Module  # plain, with zeros in place
    allocation: str  # that made the masks
    moved: bool  # whether weights that are kept, or statistics of norm layers, differ from the dense model's
    raw: bool = False  # masks of a single step, beside averaged ones
    flops: float | None = None  # the share of the dense model's that is left, where whole channels were cut


def prune(
    model: nn.Module,
    data: Calibration,
    method: str = "dap",
    sparsities: Sequence[float] | None = None,
    *,
    allocation: str | None = None,
    finetuned: bool | None = None,
    recalibrated: bool = False,
    raw: bool = False,
    config: PruneConfig | None = None,
    train: TrainConfig | None = None,
    validation: Mapping[str, Source] | None = None,
    watch: Mapping[str, Source] | None = None,
    watch_every: int | None = None,
    skip: Container[str] = (),
) -> Iterator[Pruned]:
    """Sparse copies of `model`, which stays unchanged: one for each of `sparsities`, as soon as it is there.

    `allocation` is one of `dap.allocation.ALLOCATIONS`, a pattern such as "2:4", which sets the sparsity itself, for
    mask learning "path", or "flops" and "flops_uniform": whole coupled channels, where a sparsity is the share of FLOPs
    to cut, and mask learning has one logit per channel. `finetuned` says whether to train on under the masks. Both are
    the method's own if not given.
    `recalibrated` estimates the statistics of norm layers again on the sources' images; no weight moves by that.
    With `raw`, mask learning that averages its logits gives for each sparsity the paper's masks of a single step, too.
    `config` is that of mask learning; which weights are masked is in it, for every method. `train` is for methods that
    train and for fine-tuning; both take as many steps as mask learning, unless it says otherwise. `validation` selects
    among the checkpoints of fine-tuning. Every `watch_every` steps mask learning evaluates its masks on it and on
    `watch`, and tells `data.on_step`; nothing is selected by it. What `skip` names by its `Pruned.wished` is there
    already.

    >>> images = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    >>> data = Calibration({"a": images, "b": images}, batches=2)
    >>> [pruned.masks.sparsity for pruned in prune(nn.Linear(4, 2), data, "taylor", [0.25, 0.75])]
    [0.25, 0.75]
    """
    if method not in METHODS:
        raise DapError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    allocation = allocation or METHODS[method].allocation
    cuts = _cuts(method, allocation, sparsities)
    config = (config or PruneConfig()).resolved(channels=allocation in BY_FLOPS)
    if (alpha := METHODS[method].alpha) is not None:
        config = replace(config, alpha=alpha)
    tune = METHODS[method].finetuned if finetuned is None else finetuned
    steps = config.steps if train is None or train.steps is UNSET else train.steps
    train = replace(train or TrainConfig(), batch_size=data.batch_size, seed=data.seed, steps=steps)
    # What is wrong is said before anything takes time.
    maskable_weights(model, config.include, config.exclude)
    if METHODS[method].learns:
        check_domains(config, data.sources)
    if tune or METHODS[method].trains:
        train = train.resolved()
    on_the_way = METHODS[method].learns and allocation in ("path", "flops")
    if on_the_way and (highest := max(map(float, cuts))) > config.target_sparsity:
        raise DapError(f"mask learning ends at target_sparsity={config.target_sparsity}: raise it to reach {highest}")
    if watch_every is not None and watch_every < 1:
        raise DapError(f"watch_every is {watch_every}; it must be at least 1")
    if raw and (tune or recalibrated or not (METHODS[method].learns and allocation == "path" and config.average)):
        learning = " or ".join(name for name, method in METHODS.items() if method.learns)
        raise DapError(
            f"raw masks come beside averaged ones: they need method {learning}, allocation path, an average above 0, "
            "and neither fine-tuning nor recalibrated"
        )
    if recalibrated and not norms_of(model):
        raise DapError("the model has no norm layers that keep statistics: leave recalibrated out")
    left = {wish: cut for wish, cut in cuts.items() if wish not in skip}
    looks = {"validation": validation, "watch": watch, "eval_every": watch_every} if watch_every is not None else {}
    pruning = _Pruning(model, data, method, allocation, config, train, validation or {}, tune, recalibrated, raw, looks)
    return pruning.results(list(cuts), left) if left else iter(())


@dataclass(frozen=True)
class _Pruning:
    """What was asked for, in full."""

    model: nn.Module
    data: Calibration
    method: str
    allocation: str
    config: PruneConfig
    train: TrainConfig
    validation: Mapping[str, Source]
    tune: bool
    recalibrated: bool
    raw: bool
    looks: Mapping[str, Any]  # that mask learning takes on its way

    def results(self, wishes: Sequence[str], cuts: Mapping[str, Callable[..., Masks]]) -> Iterator[Pruned]:
        """A result for each of `cuts`; `wishes` are those that were made before, too."""
        channels = None
        if self.allocation in BY_FLOPS:
            device = next(self.model.parameters()).device
            channels = find_channels(self.model, self.data.inputs(device), self.config.include, self.config.exclude)
        scores = self._scores(wishes, channels)
        for wish, cut in cuts.items():
            masks, made_by = self._cut(scores, wish, cut)
            if channels is None:
                _warn_if_far(masks, wish)
            sparse = bake(self.model if scores.model is None else scores.model, masks)
            checkpoint = self._finetune(sparse, masks, wish) if self.tune else None
            if self.recalibrated:
                device = next(sparse.parameters()).device
                estimate_norms(sparse, self.data.stream(device), self.data.engine.ranks)
            moved = self.tune or self.recalibrated or scores.model is not None
            flops = None if channels is None else channels.flops(channels.kept(masks))
            yield Pruned(wish, masks, sparse, made_by, moved, flops=flops)
            if self.raw and scores.raw is not None:
                masks, made_by = self._cut(scores.raw, wish, cut)
                yield Pruned(wish, masks, bake(self.model, masks), made_by, moved, raw=True)
            if checkpoint is not None and self.data.engine.first:  # only now is it in the caller's hands
                checkpoint.unlink(missing_ok=True)

    def _cut(self, scores: Scores, wish: str, cut: Callable[..., Masks]) -> tuple[Masks, str]:
        """The masks, and the allocation that made them: what mask learning did not reach is cut from its ranking."""
        passed = None if ":" in wish else scores.passed.get(float(wish))
        made_by = "global" if self.allocation == "path" and passed is None else self.allocation
        return cut(scores) if passed is None else passed, made_by

    def _scores(self, wishes: Sequence[str], channels: Channels | None) -> Scores:
        criterion: Callable[..., Scores] = CRITERIA[self.method]
        options: dict[str, Any] = {"include": tuple(self.config.include), "exclude": tuple(self.config.exclude)}
        if METHODS[self.method].learns:
            milestones = [float(wish) for wish in wishes] if self.allocation in ("path", "flops") else []
            options |= {"config": self.config, "milestones": milestones, "channels": channels, **self.looks}
        if METHODS[self.method].trains:
            options["config"] = self.train
        scores = criterion(self.model, self.data, **options)
        scores.channels = channels
        if channels is None and not METHODS[self.method].learns:  # mask learning has left them out itself
            self._leave_out_unused(scores)
        if self.allocation in _BY_CHANNEL or ":" in self.allocation:
            _keep_whole(scores, self.model, self.data, self.allocation)
        return scores

    def _leave_out_unused(self, scores: Scores) -> None:
        masked = MaskedModel(self.model, self.config.include, self.config.exclude)
        inputs = self.data.inputs(next(iter(masked.weights.values())).device)
        unused = masked.unused(inputs, ranks=self.data.engine.ranks)
        if unused:
            warn_unused(unused, masked.weights)
        for name in unused:
            del scores[name]

    def _finetune(self, sparse: nn.Module, masks: Masks, wish: str) -> Path | None:
        """Train on, in place; the file that it was saved in on the way."""
        data, steps, report = self.data, self.train.steps, self.data.on_step
        file = f"finetuning-{folder_of(Path(), wish)}.safetensors"
        checkpoint = None if data.checkpoint is None else Path(data.checkpoint).with_name(file)

        def tell(stats: TrainStats) -> None:
            if report is not None:
                report(News(f"fine-tuning at {wish}", stats.step, steps, stats.words(), stats.row()))

        found = finetune(
            sparse,
            masks,
            data.sources,
            self.train,
            objective=data.objective,
            validation=self.validation,
            checkpoint=checkpoint,
            on_step=tell,
            engine=data.engine,
        )
        data.check_whole(found.interrupted)
        return checkpoint


def _warn_if_far(masks: Masks, wish: str) -> None:
    if ":" not in wish and masks.sparsity < float(wish) / 2:
        kept = sum(sparsity == 0 for sparsity in masks.by_layer().values())
        text = f"a sparsity of {wish} was asked for, and {masks.sparsity:.3f} is reached: {kept} layers are kept whole"
        warnings.warn(text, stacklevel=2)


def _cuts(method: str, allocation: str, sparsities: Sequence[float] | None) -> dict[str, Callable[..., Masks]]:
    """What turns scores into masks, by what was asked for."""
    if METHODS[method].whole and (sparsities is not None or ":" in allocation):
        raise DapError(f"{method} cuts nothing: leave sparsities and patterns out")
    if pattern := re.fullmatch(r"(\d+):(\d+)", allocation):
        if sparsities:
            raise DapError(f"the pattern {allocation} sets the sparsity: leave sparsities out")
        cuts: dict[str, Callable[..., Masks]] = {allocation: n_of_m(*map(int, pattern.groups()))}
    else:
        known = [*ALLOCATIONS, *BY_FLOPS, *(["path"] if METHODS[method].allocation == "path" else [])]
        if allocation not in known:
            known.append("N:M")
            raise DapError(f"there is no allocation {allocation!r} for {method}; choose one of {', '.join(known)}")
        sparsities = METHODS[method].sparsities(allocation) if sparsities is None else sparsities
        if not sparsities:
            raise DapError("there are no sparsities: give at least one, or leave them out for the method's own")
        for sparsity in sparsities:
            if not (0 < sparsity < 1 or METHODS[method].whole):
                raise DapError(f"sparsity is {sparsity}; it is a share between 0 and 1, both excluded")
        if allocation in BY_FLOPS:
            allocate: Callable[..., Masks] = partial(_cut_channels, uniform=BY_FLOPS[allocation])
        else:
            allocate = ALLOCATIONS.get(allocation, ALLOCATIONS["global"])
        cuts = {str(float(sparsity)): partial(allocate, sparsity=sparsity) for sparsity in sparsities}
    if METHODS[method].by_channel and allocation not in (*_BY_CHANNEL, *BY_FLOPS):
        raise DapError(f"{method} scores whole channels: choose allocation {', '.join((*_BY_CHANNEL, *BY_FLOPS))}")
    return cuts


def _cut_channels(scores: Scores, sparsity: float, uniform: bool) -> Masks:
    channels = scores.channels
    assert channels is not None
    by_channel = channels.scores_of(scores) if scores.by_channel is None else scores.by_channel
    return channels.masks(channels.cut(by_channel, sparsity, uniform=uniform))


def _keep_whole(scores: Scores, model: nn.Module, data: Calibration, allocation: str) -> None:
    """Leave whole what cannot be cut so: the head, whose channels are the classes, transposed convolutions, and weights
    of other layers that `include` has added, whose outputs may be along any dimension."""
    weights = every_weight(model)
    whole = {f"{path}.weight" for path, module in model.named_modules() if is_transposed(module)}
    whole |= set(scores) - set(weights)
    if allocation in _BY_CHANNEL:
        whole |= set(order_of_use(model, weights, data.inputs(next(iter(weights.values())).device))[-1:])
    for name in whole & set(scores):
        scores[name] = torch.full((1,), math.inf, device=scores[name].device).expand(scores[name].shape)
