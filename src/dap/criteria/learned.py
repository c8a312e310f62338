"""DAP's own ranking as a criterion: the logits that mask learning ends with."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from dap.config import PruneConfig
from dap.criteria.calibration import Calibration, News, Scores
from dap.method.gates import by_weight
from dap.method.learn import learn_masks
from dap.method.step import StepStats
from dap.structure.channels import Channels


def dap(
    model: nn.Module,
    data: Calibration,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    config: PruneConfig | None = None,
    milestones: Sequence[float] = (),
    channels: Channels | None = None,
    **looks: Any,
) -> Scores:
    """λ̃ at the end of mask learning, averaged where the configuration says so; and its cuts on reaching `milestones`.

    With `channels` these are learnt, instead of single weights. Batch size and seed are the data's; `looks` are the
    options of `learn_masks` that say what to evaluate on the way.
    """
    config = config or PruneConfig()
    chosen = {"include": include or config.include, "exclude": exclude or config.exclude}
    config = replace(config, batch_size=data.batch_size, seed=data.seed, **chosen)
    steps, report = config.resolved().steps, data.on_step
    path = learn_masks(
        model,
        data.sources,
        config,
        objective=data.objective,
        milestones=milestones,
        granularity=channels or by_weight,
        **looks,
        checkpoint=data.checkpoint,
        on_step=None if report is None else partial(_tell, report, steps),
        engine=data.engine,
    )
    data.check_whole(path.interrupted)
    layout, ranking = path.pruner.layout, path.pruner.ranking()
    if channels is None:
        scores = Scores(layout.expand(ranking))
        if path.pruner.average is not None:
            scores.raw = Scores(layout.expand(path.pruner.ranking(raw=True)))
            scores.raw.passed = path.raw
    else:
        scores = Scores()
        scores.by_channel = ranking
    scores.passed = {milestone: shot.cut for milestone, shot in path.snapshots.items() if shot.cut is not None}
    return scores


def _tell(report: Callable[[News], None], steps: int, stats: StepStats) -> None:
    text = f"loss {stats.loss:.3f}, sparsity {stats.sparsity:.0%}"
    report(News("mask learning", stats.step, steps, text, stats.row()))


def agnostic(
    model: nn.Module,
    data: Calibration,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    config: PruneConfig | None = None,
    **options: Any,
) -> Scores:
    """The same with α = 0: the domains' disagreement plays no part."""
    return dap(model, data, include, exclude, replace(config or PruneConfig(), alpha=0.0), **options)
