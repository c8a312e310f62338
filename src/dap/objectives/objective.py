"""What an objective is."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.runtime.batches import Batches
from dap.runtime.outputs import Outputs
from dap.specs.ranges import Range

Weights = Mapping[str, Tensor]
Gradients = dict[str, Tensor | None]  # by weight; None: it took no part
LossFunction = Callable[[Mapping[str, Outputs], Mapping[str, Tensor]], Tensor]
Loss = LossFunction | nn.Module | str  # or a loss of PyTorch, such as nn.CrossEntropyLoss(), or an objective's name


class Gradient(NamedTuple):
    """A loss, and its gradient with respect to the model's weights and to what the objective itself learns."""

    loss: float
    weights: Gradients
    learned: Gradients


class Objective(nn.Module):
    """Maps the outputs and labels of each domain to one loss. It calls no `backward` and owns no optimiser.

    A subclass defines `forward`; all else has a default. What it learns beside the model (a discriminator, weights of
    domains) are its own parameters and buffers: saved with the dense model, constant while masks are learnt.
    """

    needs: ClassVar[Literal["logits", "features", "stages", "anything"]] = "logits"  # of the model's outputs
    # Whether the loss of a batch is the mean of its parts' losses: processes then need not see each other's outputs.
    separable: ClassVar[bool] = False
    search: ClassVar[Mapping[str, Range]] = {}

    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    trained: int = 0  # steps of training behind it
    step: int | None = None  # of dense training, from 1 on; None: training is over, nothing is learned any more

    def __init__(self) -> None:
        super().__init__()

    @classmethod
    def defaults_for(cls, suite: str) -> dict[str, Any]:
        """Arguments of the constructor whose usual values are others on this suite."""
        return {}

    def prepare(self, model: nn.Module, domains: tuple[str, ...], classes: int) -> None:
        """Make what is learned beside the model, before training or before a saved state is loaded."""

    def mix(self, batches: Batches, rng: np.random.Generator) -> Batches:
        """The batches that the model sees instead. Labels may become probabilities, [n, classes]."""
        return batches

    def observe(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """What the loss needs to know about the inputs themselves: `Outputs.reference`."""
        return ()

    def gradient(
        self,
        gradient_of: Callable[[Weights, Batches], Gradient],
        weights: Weights,
        batches: Batches,
        advance: Callable[[Weights, Gradients], Weights],
        rng: np.random.Generator,
    ) -> Gradient:
        """The gradient of one training step, from gradients of the loss.

        `advance` gives the weights after the first step of a new optimiser like the model's.
        """
        return gradient_of(weights, batches)

    def turn(self, step: int) -> Literal["both", "model", "learned"]:
        """Who moves in this step of training: the model, what the objective learns, or both."""
        return "both"

    def learning_rate(self, base: float) -> float:
        """Of what the objective learns, where the model's is `base`."""
        return base

    def restarts(self, step: int) -> bool:
        """Whether the optimiser forgets its moments before this step."""
        return False

    @staticmethod
    def of(loss: "Loss | Objective") -> "Objective":
        """An objective from its name, from a loss of PyTorch, or from any function of outputs and labels by domain."""
        if isinstance(loss, Objective):
            return loss
        if isinstance(loss, str):
            return _by_name(loss)
        if isinstance(loss, type) or not callable(loss):
            kind = f"the class {loss.__name__}" if isinstance(loss, type) else f"a {type(loss).__name__}"
            raise DapError(
                f"the objective is {kind}: give an instance such as dap.objectives.Coral(), its name such as 'coral', "
                f"or a function of outputs and labels by domain"
            )
        of_torch = isinstance(loss, nn.modules.loss._Loss) or getattr(loss, "__module__", "") == F.__name__
        return _Mean(loss) if of_torch else _Plain(loss)

    def options(self) -> dict[str, Any]:
        """The arguments it was made with: each is kept in an attribute of the same name, and JSON can hold it."""
        values = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def identity(self) -> dict[str, Any]:
        """What tells it from others: its kind and options."""
        return {"kind": type(self).__name__, **self.options()}

    def learned(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


class _Plain(Objective):
    needs = "anything"  # what a user's function reads is not known

    def __init__(self, loss: LossFunction):
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        try:
            return self.loss(outputs, labels)
        except (TypeError, AttributeError) as error:
            raise DapError(
                f"the objective failed ({error}): it gets two dictionaries by domain, of outputs, whose .logits are "
                f"[n, classes], and of labels"
            ) from error

    def options(self) -> dict[str, Any]:
        return {}  # a function cannot be written down


class _Mean(Objective):
    """A loss of PyTorch, such as `nn.CrossEntropyLoss()`: the mean over the domains."""

    def __init__(self, loss: Callable[..., Any]):  # of logits and labels
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self._of(outputs[domain].logits.float(), labels[domain]) for domain in outputs]).mean()

    def _of(self, logits: Tensor, labels: Tensor) -> Tensor:
        try:
            loss = self.loss(logits, labels)
        except (RuntimeError, ValueError, TypeError) as error:
            raise DapError(
                f"{self._name} does not fit logits {list(logits.shape)} and labels {list(labels.shape)} of "
                f"{labels.dtype} ({error}): give a loss of classes, such as nn.CrossEntropyLoss()"
            ) from error
        if loss.numel() != 1:
            raise DapError(f"{self._name} gives a loss of shape {list(loss.shape)}: use reduction='mean'")
        return loss

    @property
    def _name(self) -> str:
        return getattr(self.loss, "__name__", type(self.loss).__name__)

    def options(self) -> dict[str, Any]:
        own = vars(self.loss).items()
        return {"loss": self._name} | {name: value for name, value in own if isinstance(value, str | int | float)}


def _by_name(name: str) -> Objective:
    from dap.objectives import OBJECTIVES  # which builds on this file

    if name not in OBJECTIVES:
        raise DapError(f"there is no objective {name!r}; choose one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]()


def risks(outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
    """The cross-entropy of each domain, [domains]."""
    return torch.stack([F.cross_entropy(outputs[domain].logits.float(), labels[domain]) for domain in outputs])


def pairwise(gap: Callable[[Tensor, Tensor], Tensor], outputs: Mapping[str, Outputs]) -> Tensor:
    """The mean over all pairs of domains of a gap between their features; 0 for one domain."""
    features = [output.features.float() for output in outputs.values() if output.features is not None]
    gaps = [gap(one, other) for index, one in enumerate(features) for other in features[index + 1 :]]
    return torch.stack(gaps).mean() if gaps else torch.zeros((), device=next(iter(outputs.values())).logits.device)
