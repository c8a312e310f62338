"""Schedules: the temperature, and the coefficient of the sparsity loss by the paper's rule or paced by the budget."""

from typing import NamedTuple, Protocol

from dap.config import PacedSchedule, PaperSchedule, PruneConfig
from dap.method.gates import sparsity_loss

_EPSILON = 1e-8


def temperature(step: int, steps: int, first: float, last: float) -> float:
    """τ_t = τ₀·(τ₁/τ₀)^(t/T) (eq. 3), and τ₁ from then on."""
    return first * (last / first) ** (min(step, steps) / steps)


class Observation(NamedTuple):
    """What a coefficient may look at, all before the step's update."""

    step: int
    task_loss: float
    sparsity: float  # s_t, expected: 1 − mean σ(λ̃)
    task_gradient: float  # mean |∂L_task/∂λ|
    slope: float  # mean of σ(λ̃)(1−σ(λ̃))/N over the logits: the sparsity's own derivative


class Coefficient(Protocol):
    """λ_s, and the sparsity that the sparsity loss pulls towards."""

    state: float | None  # the one number that is remembered from step to step

    def target(self, step: int) -> float: ...

    def __call__(self, seen: Observation) -> float: ...


class PaperCoefficient:
    """λ_base · progress · difficulty · ratio, smoothed, then clamped."""

    def __init__(self, schedule: PaperSchedule, target_sparsity: float):
        self.schedule, self.target_sparsity = schedule, target_sparsity
        self.state: float | None = None  # the smoothed λ_s

    def target(self, step: int) -> float:
        return self.target_sparsity

    def __call__(self, seen: Observation) -> float:
        schedule = self.schedule
        loss, _ = sparsity_loss(seen.sparsity, self.target_sparsity)
        progress = 1 + schedule.acceleration * seen.sparsity / self.target_sparsity  # (eq. 14)
        difficulty = (1 - seen.sparsity + _EPSILON) ** -schedule.exponent - 1  # (eq. 15)
        # (eq. 16). A task loss below 0 gives the lower bound, so the sparsity loss always pulls towards its target.
        ratio = _clip(seen.task_loss / (loss + _EPSILON) / schedule.ratio, *schedule.ratio_range)
        coefficient = schedule.base * progress * difficulty * ratio  # (eq. 13)
        self.state = _ema(self.state, coefficient, schedule.smoothing)  # (eq. 17)
        return _clip(self.state, *schedule.range)


class PacedCoefficient:
    """Weighs the pull towards a moving target against the task's own gradient, so that any budget and any N will do."""

    def __init__(self, schedule: PacedSchedule, initial: float, target_sparsity: float, steps: int):
        self.schedule, self.initial, self.target_sparsity, self.steps = schedule, initial, target_sparsity, steps
        self.state: float | None = None  # the smoothed mean |task gradient|

    def target(self, step: int) -> float:
        """The path: from the initial sparsity to the final one over the first `share` of the steps."""
        along = min(1.0, step / (self.schedule.share * self.steps))
        ahead = (1 - along**self.schedule.start) ** self.schedule.curve
        return self.target_sparsity - (self.target_sparsity - self.initial) * ahead

    def __call__(self, seen: Observation) -> float:
        """Such that at a deviation of `tolerance` the mean gradients of both losses are equal."""
        self.state = _ema(self.state, seen.task_gradient, self.schedule.smoothing)
        # The floors keep the path alive where the task has no gradient left, or the gates no slope.
        return max(self.state, 1e-11) / (2 * self.schedule.tolerance * max(seen.slope, 1e-30))


def make_coefficient(config: PruneConfig) -> Coefficient:
    if config.coefficient == "paper":
        return PaperCoefficient(config.paper, config.target_sparsity)
    return PacedCoefficient(config.paced, 1 - config.p_init, config.target_sparsity, config.steps)


def _ema(state: float | None, value: float, smoothing: float) -> float:
    """A moving average that starts at its first value."""
    return value if state is None else smoothing * state + (1 - smoothing) * value


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
