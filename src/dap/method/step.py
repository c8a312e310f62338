"""Algorithm 1: one step of mask learning, and the masks at any time."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dap.config import PruneConfig
from dap.errors import DapError
from dap.masks.attach import MaskedModel, warn_unused
from dap.masks.masks import Masks
from dap.method.gates import Granularity, Pieces, by_weight, pull, relax, relax_gradient, sparsity_loss, weigh
from dap.method.gradients import domain_gradients, task_gradient
from dap.method.schedules import Observation, make_coefficient, temperature
from dap.method.sensitivities import Sensitivity, find_sensitivity
from dap.objectives import Erm, Objective
from dap.objectives.objective import Gradients, Loss
from dap.runtime.batches import Batches, check_batch
from dap.runtime.outputs import asking
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.reading import require, require_like, require_types
from dap.runtime.seeding import derive_seed, uniform_noise
from dap.runtime.sources import to_device

_SAVED = {
    "steps_done": int,
    "reached": float,
    "unused": list[str] | None,
    "gates": int,
    "compared": list[str],
    "coefficient": float | None,
    "config": dict[str, Any],
    "weights": dict[str, list[int]],
}


class StepStats(NamedTuple):
    """What a step saw and did. Losses and expectations are those before its update, mask sparsities those after it."""

    step: int
    loss: float  # the task's
    sparsity_loss: float
    coefficient: float  # λ_s
    temperature: float  # τ
    expected_sparsity: float  # 1 − mean σ(λ̃)
    target: float  # what the sparsity loss pulls towards
    sparsity: float  # of `masks()`
    raw_sparsity: float  # of the mask λ̃ > 0, without averaging
    # Where masks were evaluated:
    hard_loss: float | None = None  # of the hard network, on the step's batch
    validation: Mapping[str, float] | None = None  # accuracy by source domain
    watched: Mapping[str, float] | None = None  # accuracy on data to watch; nothing is selected by it

    def row(self) -> dict[str, Any]:
        """The fields that have a value."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def check_domains(config: PruneConfig, domains: Collection[str]) -> None:
    if not domains:
        raise DapError("there are no source domains: give at least one")
    if config.alpha and len(domains) < 2:
        raise DapError("domain sensitivity compares domains, and there is only 1: give at least two, or set alpha=0")


class Pruner:
    """Learns, for every weight of a frozen model, whether to keep it.

    >>> pruner = Pruner(nn.Linear(4, 2), PruneConfig(steps=10, target_sparsity=0.5, alpha=0.0))
    >>> stats = pruner.step({"here": (torch.randn(8, 4), torch.randint(2, (8,)))})
    >>> stats.step, pruner.masks(sparsity=0.5).kept
    (1, 4)
    """

    def __init__(
        self,
        model: nn.Module,
        config: PruneConfig | None = None,
        objective: Objective | Loss | None = None,
        *,
        granularity: Granularity = by_weight,
        ranks: Ranks = ALONE,
    ):
        self.config = (config or PruneConfig()).resolved(channels=granularity.channels)
        self.measure = find_sensitivity(self.config.sensitivity)
        self.ranks = ranks
        self.masked = MaskedModel(model, self.config.include, self.config.exclude)
        self.granularity = granularity
        self.steps_done = 0
        self.reached = 0.0  # the sparsity of `masks()`
        self.device = next(iter(self.masked.weights.values())).device
        self.objective = Objective.of(objective or Erm()).to(self.device)
        self.network = partial(self.masked, **asking(model, self.objective.needs))
        self.coefficient = make_coefficient(self.config)
        self.unused: tuple[str, ...] | None = None  # weights that are left out; None: not known before the first step
        self._make_gates()

    def _make_gates(self) -> None:
        self.layout = self.granularity.layout(self.masked.model, self.masked.weights)
        start = math.log(self.config.p_init / (1 - self.config.p_init))
        # λ̃ = λ − α·S̄ is what is kept, not λ: every step reads it, its gradient is that of λ, and S̄ rarely changes.
        self.effective = torch.full((self.layout.gates,), start, device=self.device)
        precision = self.measure.precision(self.config.beta)
        self.sensitivity = torch.zeros_like(self.effective, dtype=precision) if self.config.alpha else None
        self.memory: dict[str, Tensor] = {}  # what the measure remembers of earlier updates
        self.compared: tuple[str, ...] = ()  # the domains of those updates
        self.average = self.effective.clone() if self.config.average else None
        self.optimiser = torch.optim.Adam(
            [self.effective],
            lr=self.config.learning_rate,
            betas=self.config.adam_betas,
            eps=self.config.adam_eps,
            fused=True,
        )

    # ---- one step

    def step(self, batches: Batches) -> StepStats:
        """One optimisation step on one batch per domain: `{"art": (inputs, labels), …}`.

        With several ranks, each brings its share of every domain's batch, and all do the same step. An error (a wrong
        label, a NaN) leaves the pruner as it was before the step.
        """
        check_domains(self.config, batches)
        known = self.unused
        try:
            batches = to_device(batches, self.device)
            if known is None:
                self._leave_out(self._find_unused(batches))
            return self._step(self.steps_done + 1, batches)
        except BaseException:
            self._leave_out(known)
            raise
        finally:
            # Under a long-lived autocast its cache would keep the masked weights of every step.
            torch.clear_autocast_cache()

    def _step(self, step: int, batches: Batches) -> StepStats:
        tau = temperature(step, self.config.steps, *self.config.temperature)
        priced = self.layout.priced(self.effective)
        gates, expected, slope = self._sample(step, tau, *priced)
        weights = self.layout.masked_weights((gates > 0.5).float() if self.config.hard else gates)
        if self._updates_sensitivity(step):
            memory = {name: tensor.clone() for name, tensor in self.memory.items()}  # a step that fails drops it
            measure = self.measure(self.layout.gates, tuple(batches), self.device, memory)
            loss, parts = domain_gradients(self.network, self.objective, weights, batches, self.ranks)
        else:
            measure, memory = None, self.memory
            loss, whole, _ = task_gradient(self.network, self.objective, weights, batches, self.ranks)
            parts = iter([whole])
            del whole
        del weights
        gradient = self._gate_gradient(parts, measure, batches)
        size = self._task_gradient(gradient, gates, tau)
        del gates
        target = self.coefficient.target(step)
        seen = Observation(step, loss, 1 - expected, size, slope)
        remembered = self.coefficient.state
        coefficient = self.coefficient(seen)
        penalty, derivative = sparsity_loss(expected, 1 - target)
        norm = self._add_sparsity_gradient(gradient, priced[0], coefficient * derivative / self.layout.total)
        if not (math.isfinite(size) and math.isfinite(norm)):  # clipping by value would hide an infinite gradient
            self.coefficient.state = remembered
            raise DapError(f"the gradient is NaN or infinite at step {step}, with a loss of {loss:.4g}")

        if norm > self.config.clip_norm:
            gradient.mul_(self.config.clip_norm / (norm + 1e-6))
        self.effective.grad = gradient
        self.optimiser.step()
        self.effective.grad = None
        del gradient
        if measure is not None:
            self._update_sensitivity(measure)
            self.memory, self.compared = memory, tuple(dict.fromkeys((*self.compared, *batches)))
        self.steps_done = step
        raw, averaged = self._advance_average()
        self.reached = averaged
        return StepStats(
            step=step,
            loss=loss,
            sparsity_loss=penalty,
            coefficient=coefficient,
            temperature=tau,
            expected_sparsity=1 - expected,
            target=target,
            sparsity=averaged,
            raw_sparsity=raw,
        )

    def _find_unused(self, batches: Batches) -> tuple[str, ...]:
        """The weights that no domain's forward pass uses. Channels are found by such a pass already."""
        if self.granularity.channels:
            return ()
        for domain, (inputs, labels) in batches.items():
            check_batch(domain, inputs, labels)
        return tuple(self.masked.unused(*(inputs for inputs, _ in batches.values()), ranks=self.ranks))

    def _leave_out(self, unused: tuple[str, ...] | None) -> None:
        if unused == self.unused:
            return
        if unused:
            warn_unused(unused, self.masked.every)
        if unused or self.unused:
            self.masked.leave_out(unused or ())
            self._make_gates()
        self.unused = unused

    def _updates_sensitivity(self, step: int) -> bool:
        return bool(self.config.alpha) and step >= self.config.f_start and step % self.config.f_update == 0

    @property
    def logits(self) -> Tensor:
        """λ, as a new tensor."""
        logits = self.effective.clone()
        if self.sensitivity is not None:
            self.measure.shape_logit(logits, -self.sensitivity.float(), self.config.alpha)
        return logits

    def _sample(self, step: int, tau: float, pieces: Pieces, rest: float) -> tuple[Tensor, float, float]:
        """The gates m, the expected density mean σ(λ̃) over all weights, and its slope: mean σ(λ̃)(1−σ(λ̃)) / N."""
        # Noise is a function of seed and step alone: nothing to save for resuming, and every rank draws the same.
        noise = uniform_noise(derive_seed("gates", self.config.seed, step), self.device)
        gates = torch.empty_like(self.effective)
        kept = torch.zeros((), dtype=torch.float64, device=self.device)
        slope = torch.zeros_like(kept)
        for piece, fan in pieces:
            keep = self.effective[piece].sigmoid()  # p, of λ̃ (eq. 1)
            mass, steepness = weigh(keep, fan)
            kept += mass
            slope += steepness
            part = noise(gates[piece])
            relax(self.effective[piece], part, tau, out=part)
        return gates, (kept.item() + rest) / self.layout.total, slope.item() / self.layout.gates / self.layout.total

    def _gate_gradient(self, parts: Iterator[Gradients], measure: Sensitivity | None, domains: Iterable[str]) -> Tensor:
        """∂L/∂m, the sum of its parts; where they are the domains' parts, the measure sees them."""
        total = torch.empty_like(self.effective)
        first, names = True, iter(domains)
        for gradients in parts:  # zip and enumerate would keep one part while the next is computed
            domain = next(names)
            for piece, part in self.layout.gate_gradients(gradients):
                if measure is not None and measure.gradients == "gate":
                    measure.add(domain, piece, part)
                if first:
                    total[piece] = part
                else:
                    total[piece] += part
            if measure is not None and measure.gradients == "weight":
                for piece, part in self.layout.weight_gradients(gradients):
                    measure.add(domain, piece, part)
            first = False
            del gradients
        return total

    def _task_gradient(self, gradient: Tensor, gates: Tensor, tau: float) -> float:
        """Turn ∂L/∂m into ∂L/∂λ in place, as the measure shapes it; its mean absolute value."""
        size = torch.zeros((), dtype=torch.float64, device=self.device)
        for piece in self.layout.slices:
            part = relax_gradient(gradient[piece], gates[piece], tau)
            if self.sensitivity is not None:
                self.measure.shape_gradient(part, self.sensitivity[piece], self.config.alpha)
            size += part.abs().sum()
        return size.item() / self.layout.gates

    def _add_sparsity_gradient(self, gradient: Tensor, pieces: Pieces, scale: float) -> float:
        """Make the task's gradient that of the total loss (eq. 10), and clip it by value, in place; its global norm.

        It adds λ_s times the gradient of the sparsity loss: `scale` · σ(λ̃)(1−σ(λ̃)), times what a gate stands for.
        """
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        for piece, fan in pieces:
            keep = self.effective[piece].sigmoid()
            part = gradient[piece]
            pull(part, keep, fan, scale)
            part.clamp_(-self.config.clip_value, self.config.clip_value)
            squares += part.dot(part)
        return math.sqrt(squares.item()) if torch.isfinite(squares) else math.nan

    def _update_sensitivity(self, measure: Sensitivity) -> None:
        """S̄ ← β·S̄ + (1−β)·S (eq. 8), and with it λ̃ = λ − α·S̄ (eq. 9)."""
        assert self.sensitivity is not None
        for piece in self.layout.slices:
            before = self.sensitivity[piece].to(torch.float32, copy=True)
            self.sensitivity[piece] = torch.lerp(before, measure.score(piece), 1 - self.config.beta)
            change = torch.sub(self.sensitivity[piece], before, out=before)
            measure.shape_logit(self.effective[piece], change, self.config.alpha)

    def _advance_average(self) -> tuple[float, float]:
        """Move the averaged logits on; the sparsities of the raw and the averaged mask."""
        raw = self.layout.sparsity(self.effective)
        if self.average is None:
            return raw, raw
        self.average.lerp_(self.effective, 1 - self.config.average)
        return raw, self.layout.sparsity(self.average)

    # ---- masks

    def ranking(self, raw: bool = False) -> Tensor:
        """The logits that masks are cut from, one per gate: averaged where `average` is set, else λ̃."""
        return (self.effective if self.average is None or raw else self.average).clone()

    def masks(self, sparsity: float | None = None, *, raw: bool = False, allow_empty: bool = False) -> Masks:
        """The hard masks at this step: logits above 0 or, with `sparsity`, exactly that share of the weights cut.

        `raw` takes the paper's λ̃ where averaged logits are the default. Every layer keeps at least its best weight,
        unless `allow_empty`.
        """
        ranking = self.ranking(raw)
        if sparsity is None:
            return self.layout.threshold(ranking, allow_empty)
        return self.layout.cut(ranking, sparsity, allow_empty)

    def sampled_masks(self, seed: int, *, allow_empty: bool = False) -> Masks:
        """Masks drawn from the learned distribution: each gate is kept with probability σ(λ̃)."""
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = torch.bernoulli(self.effective.sigmoid(), generator=generator)
        # A gate that is not drawn ranks below 0, by its logit: a layer without any keeps its most probable.
        return self.layout.threshold(torch.where(drawn.bool(), 1.0, self.effective.sigmoid() - 1), allow_empty)

    @property
    def finished(self) -> bool:
        """All steps done, or the wished sparsity reached."""
        stop_at = self.config.stop_at
        return self.steps_done >= self.config.steps or (stop_at is not None and self.reached >= stop_at)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming needs to give the same bits: tensors, and plain values that JSON can hold."""
        adam = self.optimiser.state[self.effective]
        tensors = {"effective": self.effective, "sensitivity": self.sensitivity, "average": self.average, **adam}
        tensors |= {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        return {
            "tensors": {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None},
            "steps_done": self.steps_done,
            "reached": self.reached,
            "unused": None if self.unused is None else list(self.unused),
            "gates": self.layout.gates,
            "compared": list(self.compared),
            "coefficient": self.coefficient.state,
            "config": dataclasses.asdict(self.config),
            "weights": self._shapes(),
        }

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(weight.shape) for name, weight in self.layout.weights.items()}

    def _outline(self, moved: bool, compared: Collection[str]) -> dict[str, Tensor]:
        """What the tensors of a state look like. Adam has none before its first step, a measure before its update."""
        memory: dict[str, Tensor] = {}
        if compared and self.sensitivity is not None:
            self.measure(self.layout.gates, compared, torch.device("meta"), memory)
        own = {"effective": self.effective, "sensitivity": self.sensitivity, "average": self.average}
        own |= {f"memory.{name}": tensor for name, tensor in memory.items()}
        count = torch.zeros((), device="cpu")
        adam = {"step": count, "exp_avg": self.effective, "exp_avg_sq": self.effective} if moved else {}
        return {name: tensor for name, tensor in {**own, **adam}.items() if tensor is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same model under the same configuration."""
        # Earlier versions masked unused weights, too, and remembered nothing but S̄.
        state = {"unused": [], "compared": [], **state}
        require_types(state, _SAVED)
        unused = state["unused"]
        self._leave_out(None if unused is None else tuple(name for name in unused if name in self.masked.every))
        shapes = self._shapes()
        for name in {**shapes, **state["weights"]}:
            if shapes.get(name) != state["weights"].get(name):
                raise DapError(
                    f"the saved state does not fit the model: {name} has shape {shapes.get(name)}, "
                    f"the state {state['weights'].get(name)}"
                )
        if state["gates"] != self.layout.gates:
            raise DapError(f"the saved state has {state['gates']} gates, not {self.layout.gates}: another granularity")
        saved = PruneConfig.from_dict(state["config"])
        for field in dataclasses.fields(PruneConfig):
            ours, theirs = getattr(self.config, field.name), getattr(saved, field.name)
            if ours != theirs:
                raise DapError(f"the saved state was made with {field.name}={theirs!r}, this pruner has {ours!r}")
        require(0 <= state["steps_done"] <= self.config.steps, f"{state['steps_done']} steps are done")
        require_like(state["tensors"], self._outline(bool(state["steps_done"]), state["compared"]))
        tensors = {name: tensor.to(self.device, copy=True) for name, tensor in state["tensors"].items()}
        self.effective.copy_(tensors.pop("effective"))
        if self.sensitivity is not None:
            self.sensitivity.copy_(tensors.pop("sensitivity"))
        if self.average is not None:
            self.average.copy_(tensors.pop("average"))
        remembered = [name for name in tensors if name.startswith("memory.")]
        self.memory = {name.removeprefix("memory."): tensors.pop(name) for name in remembered}
        self.compared = tuple(state["compared"])
        self.optimiser.state.clear()
        if tensors:  # Adam has none before its first step
            self.optimiser.state[self.effective] = tensors
        self.steps_done, self.reached = state["steps_done"], state["reached"]
        self.coefficient.state = state["coefficient"]
