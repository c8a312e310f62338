"""Chooses checkpoints and settings from the source domains alone: target numbers cannot reach it by type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TypeVar

from dap.errors import DapError

Setting = TypeVar("Setting")


@dataclass(frozen=True)
class SourceScore:
    """Accuracy and loss of one checkpoint on the held-out images of the source domains."""

    step: int
    accuracy: dict[str, float]  # by source domain
    loss: dict[str, float]

    @property
    def mean_accuracy(self) -> float:
        return fsum(self.accuracy.values()) / len(self.accuracy)  # whatever the order of the domains

    @property
    def mean_loss(self) -> float:
        return fsum(self.loss.values()) / len(self.loss)


@dataclass(frozen=True)
class LeftOutScore:
    """Accuracy on a source domain of a model that was trained without it, and without the target too."""

    left_out: str
    accuracy: float


def training_domain_validation(scores: Sequence[SourceScore]) -> SourceScore:
    """The checkpoint with the best mean accuracy over the sources; of equals the earliest.

    >>> scores = [SourceScore(1, {"a": 0.5}, {"a": 1.0}), SourceScore(2, {"a": 0.7}, {"a": 0.9})]
    >>> training_domain_validation(scores).step
    2
    """
    if not scores:
        raise DapError("there is no checkpoint to choose from: give held-out images of the source domains")
    return max(scores, key=lambda score: (score.mean_accuracy, -score.step))


def leave_one_domain_out(settings: Mapping[Setting, Sequence[LeftOutScore]]) -> Setting:
    """The setting with the best mean accuracy on sources that were left out, each once.

    It needs, for every setting and source domain, a run that trains without that domain and the target.

    >>> leave_one_domain_out({"lr 1e-5": [LeftOutScore("a", 0.6)], "lr 1e-4": [LeftOutScore("a", 0.5)]})
    'lr 1e-5'
    """
    if not settings:
        raise DapError("there is no setting to choose from")
    expected = {score.left_out for scores in settings.values() for score in scores}
    if not expected:
        raise DapError("no run left a source domain out: train one for each source domain")
    for setting, scores in settings.items():
        found = [score.left_out for score in scores]
        if sorted(found) != sorted(expected):
            missing = sorted(expected - set(found)) or "one twice"
            raise DapError(f"setting {setting!r} needs every source domain left out once; missing: {missing}")
    return max(settings, key=lambda setting: fsum(score.accuracy for score in settings[setting]))
