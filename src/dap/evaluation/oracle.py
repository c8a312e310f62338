"""The oracle: what choosing by the target itself would have given. A yardstick to report, never a way to select."""

from collections.abc import Sequence
from dataclasses import dataclass

from dap.errors import DapError


@dataclass(frozen=True)
class TargetScore:
    """Accuracy of one checkpoint on an unseen domain, on its two splits."""

    step: int
    held_out: float  # on its 20 %, by which the oracle chooses
    rest: float  # on its 80 %, which is reported


def oracle(trials: Sequence[Sequence[TargetScore]]) -> TargetScore:
    """DomainBed's test-domain validation: of the trials' last checkpoints, the best on the target's held-out images.

    >>> oracle([[TargetScore(300, 0.6, 0.61)], [TargetScore(300, 0.5, 0.52), TargetScore(600, 0.7, 0.69)]]).rest
    0.69
    """
    # No early stopping: that would look at the target once for every checkpoint.
    last = [max(scores, key=lambda score: score.step) for scores in trials if scores]
    if not last:
        raise DapError("the oracle needs at least one evaluated checkpoint")
    return max(last, key=lambda score: score.held_out)
