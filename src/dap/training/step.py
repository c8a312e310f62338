"""One step of dense training."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dap.config import TrainConfig
from dap.errors import DapError
from dap.masks.attach import call_with
from dap.masks.masks import Masks
from dap.method.gradients import task_gradient
from dap.objectives import Objective
from dap.objectives.objective import Gradient, Gradients, Weights
from dap.runtime.batches import Batches
from dap.runtime.checkpoints import under
from dap.runtime.outputs import asking
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.reading import require, require_like, require_types
from dap.runtime.seeding import derive_seed
from dap.runtime.user_models import check_plain, check_shaped
from dap.training.swad import Swad

_EPS = 1e-8  # of Adam
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam remembers of a weight


class TrainStats(NamedTuple):
    step: int
    loss: float
    learning_rate: float
    best: float | None = None  # mean accuracy over the sources' held-out images, at the best check so far
    validation: Mapping[str, float] | None = None  # the same by source domain, where this step was checked

    def row(self) -> dict[str, Any]:
        """The fields that have a value."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def words(self) -> str:
        return told(self.row())


def told(row: Mapping[str, Any]) -> str:
    """For whoever watches: of a step's numbers, or of its line in a log, the loss and the best validation so far."""
    parts = {"loss": "loss {:.3f}", "best": "best validation {:.1%}"}
    return ", ".join(text.format(row[name]) for name, text in parts.items() if name in row)


class Trainer:
    """Trains a model, in place, with Adam under an objective; what the objective learns has an Adam of its own."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        config: TrainConfig,
        ranks: Ranks = ALONE,
        *,
        masks: Masks | None = None,
        movement: Collection[str] = (),
    ):
        """With `masks` the weights that are cut stay zero. `movement` names weights whose movement is added up."""
        check_plain(model)
        config = config.resolved()
        self.model, self.objective, self.config, self.ranks = model, objective, config, ranks
        self.steps_done, self.before = 0, objective.trained
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if not self.weights:
            raise DapError("the model has no weights to train: set requires_grad on those that are to move")
        check_shaped(self.weights.items())
        self.device = next(iter(self.weights.values())).device
        for name, weight in self.weights.items():
            if weight.dtype == torch.float16:
                raise DapError(f"{name} is float16, too coarse for Adam to train: use float32 or bfloat16")
        names = {id(weight): name for name, weight in model.named_parameters()}  # a tied weight has one
        self.kept: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, mask in (masks or {}).items():
                weight = model.get_parameter(name)
                self.kept[names[id(weight)]] = mask.to(self.device)
                weight.masked_fill_(~self.kept[names[id(weight)]], 0)
        for name in movement:
            if name not in self.weights:
                raise DapError(f"{name} does not move: set requires_grad on it")
        self.movement = {name: torch.zeros_like(self.weights[name], dtype=torch.float32) for name in movement}
        options = {"betas": objective.betas, "eps": _EPS, "weight_decay": config.weight_decay}
        self.optimisers = {
            kind: torch.optim.Adam(parameters.values(), **options)
            for kind, parameters in self._parameters().items()
            if parameters
        }
        self.swad = Swad(config.swad) if config.swad else None

    def _parameters(self) -> dict[str, Mapping[str, nn.Parameter]]:
        return {"model": self.weights, "learned": self.objective.learned()}

    @property
    def finished(self) -> bool:
        return self.steps_done >= self.config.steps or (self.swad is not None and self.swad.over)

    # ---- one step

    def step(self, batches: Batches) -> TrainStats:
        """One optimisation step on one batch per domain. An error leaves everything as it was."""
        step = self.steps_done + 1
        of_objective = self.before + step
        turn = self.objective.turn(of_objective)
        rate = self.learning_rate(step)
        self.objective.step = of_objective
        try:
            with self._training_mode(), self._randomness(step), self._as_before_on_error():
                loss, ours, theirs = self._gradient(step, batches, rate, {} if turn == "learned" else self.weights)
        except DapError as error:
            raise DapError(f"step {step} of training: {error}") from None
        finally:
            self.objective.step = None
        if self.objective.restarts(of_objective):
            for optimiser in self.optimisers.values():
                optimiser.state.clear()
        if turn != "learned":
            self._add_movement(ours)
            self._move("model", ours, rate)
        if turn != "model":
            self._move("learned", theirs, self.objective.learning_rate(rate))
        if not self.config.freeze_norms:
            self._share_statistics()
        self.steps_done, self.objective.trained = step, of_objective
        if self.swad is not None:
            self.swad.add(self.model.state_dict())
        return TrainStats(step, loss, rate)

    def learning_rate(self, step: int) -> float:
        if self.config.schedule == "constant":
            return self.config.learning_rate
        return self.config.learning_rate * (1 + math.cos(math.pi * (step - 1) / self.config.steps)) / 2

    def _gradient(
        self, step: int, batches: Batches, rate: float, weights: Weights
    ) -> tuple[float, Gradients, Gradients]:
        rng = np.random.default_rng(derive_seed("objective", self.config.seed, step))  # alike on all ranks
        options = asking(self.model, self.objective.needs)

        def network(weights: Weights, inputs: Tensor) -> Any:
            return call_with(self.model, weights, inputs, **options)

        def gradient_of(weights: Weights, batches: Batches) -> Gradient:
            # Norm layers in training mode see all domains as one batch, however large: that is what is trained.
            joint = None if self.config.freeze_norms else True
            found = task_gradient(network, self.objective, weights, batches, self.ranks, joint)
            # Without a gradient Adam leaves a zero where it is.
            for name, mask in self.kept.items():
                if (gradient := found.weights.get(name)) is not None:
                    found.weights[name] = gradient.masked_fill(~mask, 0)
            return found

        advance = partial(_first_step, rate=rate, decay=self.config.weight_decay)
        return self.objective.gradient(gradient_of, weights, self.objective.mix(batches, rng), advance, rng)

    @torch.no_grad()
    def _add_movement(self, gradients: Gradients) -> None:
        """−w·∂L/∂w: above zero where the step moves a weight away from zero."""
        for name, total in self.movement.items():
            if (gradient := gradients[name]) is not None:
                total.addcmul_(self.weights[name].float(), gradient.float(), value=-1)

    def _move(self, kind: str, gradients: Gradients, rate: float) -> None:
        if kind not in self.optimisers:
            return
        for name, parameter in self._parameters()[kind].items():
            parameter.grad = gradients[name]
        (group,) = self.optimisers[kind].param_groups
        group["lr"] = rate
        self.optimisers[kind].step()
        self.optimisers[kind].zero_grad()

    @contextmanager
    def _as_before_on_error(self) -> Iterator[None]:
        """A pass that fails may already have moved what is no weight: norm statistics, an objective's own numbers."""
        moving = [*self.model.buffers(), *self.objective.buffers()]
        before = [buffer.clone() for buffer in moving]
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for buffer, value in zip(moving, before, strict=True):
                    buffer.copy_(value)
            raise

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Training mode inside, for all but frozen norms; eval mode afterwards."""
        self.model.train()
        if self.config.freeze_norms:
            for module in self.model.modules():
                if isinstance(module, _NormBase):
                    module.eval()
        try:
            yield
        finally:
            self.model.eval()

    @contextmanager
    def _randomness(self, step: int) -> Iterator[None]:
        """Dropout as a function of seed, step and rank: nothing about it has to be saved."""
        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices, device_type=self.device.type if devices else "cuda"):
            torch.manual_seed(derive_seed("dropout", self.config.seed, step, self.ranks.rank))
            yield

    @torch.no_grad()
    def _share_statistics(self) -> None:
        # Each rank saw other images.
        self.ranks.mean_(buffer for buffer in self.model.buffers() if buffer.is_floating_point())

    # ---- state

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that resuming needs to give the same bits: tensors, and plain values that JSON can hold."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"objective.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        for kind, optimiser in self.optimisers.items():
            for name, parameter in self._parameters()[kind].items():
                for moment, tensor in optimiser.state[parameter].items():
                    tensors[f"adam.{kind}.{moment}.{name}"] = tensor
        tensors |= {f"movement.{name}": tensor for name, tensor in self.movement.items()}
        values: dict[str, Any] = {"steps_done": self.steps_done}
        if self.swad is not None:
            averages, values["swad"] = self.swad.state()
            tensors |= {f"swad.{name}": tensor for name, tensor in averages.items()}
        return tensors, values

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Go on from a state of the same model, objective and configuration."""
        require_types(values, {"steps_done": int})
        require(0 <= values["steps_done"] <= self.config.steps, f"{values['steps_done']} steps are done")
        require_like(under(tensors, "movement."), self.movement)
        for part, module in {"model": self.model, "objective": self.objective}.items():
            require_like(under(tensors, f"{part}."), module.state_dict())
            module.load_state_dict(under(tensors, f"{part}."))
        for kind, optimiser in self.optimisers.items():
            optimiser.state.clear()
            moments = {moment: under(tensors, f"adam.{kind}.{moment}.") for moment in _MOMENTS}
            for moment, found in moments.items():
                require(found.keys() == moments["step"].keys(), f"{moment} is not there for every weight")
                for name, tensor in found.items():
                    parameter = self._parameters()[kind][name]
                    like = torch.zeros((), device="cpu") if moment == "step" else parameter
                    require_like({name: tensor}, {name: like})
                    place = torch.device("cpu") if moment == "step" else parameter.device
                    optimiser.state[parameter][moment] = tensor.to(place, copy=True)
        for name, total in self.movement.items():
            total.copy_(tensors[f"movement.{name}"])
        self.steps_done = values["steps_done"]
        self.objective.trained = self.before + self.steps_done
        if self.swad is not None:
            averages = {name: tensor.to(self.device) for name, tensor in under(tensors, "swad.").items()}
            self.swad.load(averages, values["swad"], self.model.state_dict())


def _first_step(weights: Weights, gradients: Gradients, rate: float, decay: float) -> Weights:
    """The weights after the first step of a new Adam, where both moments are those of one gradient."""
    stepped = {}
    for name, weight in weights.items():
        gradient = gradients[name]
        if gradient is not None:
            gradient = gradient.add(weight.detach(), alpha=decay)
            weight = weight.detach() - rate * gradient / (gradient.abs() + _EPS)
        stepped[name] = weight
    return stepped
