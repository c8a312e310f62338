"""Movement: weights are kept that training moves away from zero. The weights move, unlike with the other criteria."""

from dataclasses import replace

from torch import nn

from dap.config import TrainConfig
from dap.criteria.calibration import Calibration, News, Scores
from dap.masks.attach import maskable_weights
from dap.runtime.user_models import copied
from dap.training.loop import finetune


def movement(
    model: nn.Module,
    data: Calibration,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    config: TrainConfig | None = None,
) -> Scores:
    """−Σ w·∂L/∂w over the steps of a fine-tuning; the scores come with the fine-tuned copy they belong to.

    `config` says how to fine-tune (default: 500 steps); batch size and seed are the data's.
    """
    config = replace(config or TrainConfig(steps=500), batch_size=data.batch_size, seed=data.seed)
    moved = copied(model)
    weights = maskable_weights(moved, include, exclude)
    for weight in weights.values():
        weight.requires_grad_(True)
    steps = config.resolved().steps
    report = data.on_step
    trained = finetune(
        moved,
        None,
        data.sources,
        config,
        objective=data.objective,
        movement=weights,
        checkpoint=data.checkpoint,
        on_step=report and (lambda stats: report(News("movement", stats.step, steps, stats.words(), stats.row()))),
        engine=data.engine,
    )
    data.check_whole(trained.interrupted)
    scores = Scores(trained.movement)
    scores.model = moved
    return scores
