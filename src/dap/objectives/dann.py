"""Domain-adversarial training (Ganin et al., 2016), and conditional on the class (Li et al., 2018)."""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.objectives.objective import Objective
from dap.runtime.outputs import Outputs
from dap.specs.ranges import Choice, LogUniform

_MOST_LAYERS = 100


class Dann(Objective):
    """Risk − λ · the loss of a discriminator that tells the domain from the features.

    In training, model and discriminator move in turn, the model first. Afterwards the discriminator stays as it is.
    """

    needs = "features"
    search = {
        "weight": LogUniform(-2, 2),
        "discriminator_steps": LogUniform(0, 3, base=2, whole=True),
        "gradient_penalty": LogUniform(-2, 1),
        "beta1": Choice((0.0, 0.5)),
        "width": LogUniform(6, 10, base=2, whole=True),
        "depth": Choice((3, 4, 5)),
        "dropout": Choice((0.0, 0.1, 0.5)),
        "discriminator_rate": LogUniform(-5, -3.5),
    }
    discriminator: nn.Sequential

    def __init__(
        self,
        weight: float = 1.0,
        discriminator_steps: int = 1,  # for each step of the model
        gradient_penalty: float = 0.0,
        beta1: float = 0.5,
        width: int = 256,
        depth: int = 3,
        dropout: float = 0.0,
        discriminator_rate: float | None = None,  # its learning rate; None: the model's
    ):
        super().__init__()
        if depth > _MOST_LAYERS:
            raise DapError(f"depth is {depth}; DANN's discriminator has at most {_MOST_LAYERS} layers")
        self.weight, self.discriminator_steps, self.gradient_penalty = weight, discriminator_steps, gradient_penalty
        self.beta1, self.width, self.depth, self.dropout = beta1, width, depth, dropout
        self.discriminator_rate = discriminator_rate
        self.betas = (beta1, 0.9)
        self.domains: tuple[str, ...] = ()

    def prepare(self, model: nn.Module, domains: tuple[str, ...], classes: int) -> None:
        self.domains = domains
        size = getattr(model, "feature_size", None)
        if not isinstance(size, int):
            raise DapError("DANN's discriminator needs to know the size of the features: give a dap.Classifier")
        layers: list[nn.Module] = [nn.Linear(size, self.width)]
        for _ in range(self.depth - 2):
            layers += [nn.Dropout(self.dropout), nn.ReLU(), nn.Linear(self.width, self.width)]
        self.discriminator = nn.Sequential(
            *layers, nn.Dropout(self.dropout), nn.ReLU(), nn.Linear(self.width, len(domains))
        )

    def turn(self, step: int) -> Literal["both", "model", "learned"]:
        return "model" if step % (1 + self.discriminator_steps) == self.discriminator_steps else "learned"

    def learning_rate(self, base: float) -> float:
        return base if self.discriminator_rate is None else self.discriminator_rate

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        if tuple(outputs) != self.domains:
            raise DapError(
                f"DANN's discriminator knows domains {self.domains}, not {tuple(outputs)}: "
                f"train with it first, or load the state saved with the dense model"
            )
        features = torch.cat([output.features.float() for output in outputs.values() if output.features is not None])
        classes = torch.cat(list(labels.values()))
        origin = torch.cat([torch.full_like(labels[domain], index) for index, domain in enumerate(outputs)])
        self.discriminator.train(self.step is not None)
        adversary = self._adversary(features, classes, origin)
        if self.step is not None and self.turn(self.step) == "learned":
            return adversary
        logits = torch.cat([output.logits.float() for output in outputs.values()])
        return F.cross_entropy(logits, classes) - self.weight * adversary

    def _adversary(self, features: Tensor, classes: Tensor, origin: Tensor) -> Tensor:
        """The discriminator's loss."""
        seen = self._seen(features, classes)
        if self.gradient_penalty and not seen.requires_grad:
            seen = seen.requires_grad_()
        losses = F.cross_entropy(self.discriminator(seen), origin, reduction="none")
        loss = (self._shares(classes) * losses).sum()
        if self.gradient_penalty:
            (slope,) = torch.autograd.grad(losses.sum(), seen, create_graph=True)
            loss = loss + self.gradient_penalty * slope.square().sum(1).mean()
        return loss

    def _seen(self, features: Tensor, classes: Tensor) -> Tensor:
        """What the discriminator sees of an image."""
        return features

    def _shares(self, classes: Tensor) -> Tensor:
        """How much each image counts in the discriminator's loss."""
        return torch.full(classes.shape, 1 / len(classes), device=classes.device)


class Cdann(Dann):
    """DANN whose discriminator also knows the class, with every class of equal weight in its loss."""

    embedding: nn.Embedding

    def prepare(self, model: nn.Module, domains: tuple[str, ...], classes: int) -> None:
        super().prepare(model, domains, classes)
        self.embedding = nn.Embedding(classes, getattr(model, "feature_size"))  # noqa: B009  # checked above

    def _seen(self, features: Tensor, classes: Tensor) -> Tensor:
        return features + self.embedding(classes)

    def _shares(self, classes: Tensor) -> Tensor:
        counts = torch.bincount(classes)
        # Up to the largest class in the batch, as DomainBed counts them.
        return 1 / (counts[classes] * len(counts))
