"""FGSM and PGD: the worst that a perturbation of at most ε in every pixel does to a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.evaluation.bits import pack_bits
from dap.evaluation.pixels import InPixels, batches
from dap.masks.attach import frozen
from dap.runtime.seeding import derive_seed
from dap.runtime.sources import Source


@dataclass(frozen=True)
class Attack:
    """An attack within the L∞ ball of radius `epsilon`, in pixels of [0, 1]."""

    kind: Literal["fgsm", "pgd"]
    epsilon: float
    steps: int = 10  # of PGD
    step_size: float | None = None  # of PGD; None: ε/2
    random_start: bool = True  # of PGD
    restarts: int = 1  # of PGD: the worst counts
    seed: int = 0  # of the random starts

    def __post_init__(self) -> None:
        if self.kind not in ("fgsm", "pgd"):
            raise DapError(f"there is no attack {self.kind!r}; choose fgsm or pgd")
        if not self.epsilon > 0:
            raise DapError(f"epsilon is {self.epsilon}; it must be above 0")
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise DapError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.step_size is not None and not self.step_size > 0:
            raise DapError(f"step_size is {self.step_size}; it must be above 0")
        if self.kind == "pgd" and self.restarts > 1 and not self.random_start:
            raise DapError(f"{self.restarts} restarts from the same place are one: leave random starts on")


# By severity, 1 to 5.
EPSILONS = tuple(value / 255 for value in (0.5, 1, 2, 4, 8))
PGD_STEPS = (5, 5, 10, 10, 10)
ATTACKS: dict[str, tuple[Attack, ...]] = {
    "fgsm": tuple(Attack("fgsm", epsilon) for epsilon in EPSILONS),
    "pgd": tuple(Attack("pgd", epsilon, steps) for epsilon, steps in zip(EPSILONS, PGD_STEPS, strict=True)),
}


class Attacked(NamedTuple):
    """How a model does under an attack."""

    clean: float  # accuracy without it
    accuracy: float  # under it
    no_gradient: float | None  # the share of images that are right and cannot be attacked: their loss has no gradient
    images: int
    right: str = ""  # which images are right under it, in order: see `dap.evaluation.bits`


def perturb(
    model: nn.Module, pixels: Tensor, labels: Tensor, attack: Attack, places: Sequence[int] | None = None
) -> Tensor:
    """Adversarial images, for a model of images in [0, 1]. `places` are those of the images in their dataset.

    Of several restarts, the one that fools the model counts, else the one with the highest loss. Random starts are a
    function of the seed, the restart and the image's place: the size of batches plays no part.
    """
    if attack.kind == "fgsm":
        return _ascend(model, pixels, pixels, labels, attack.epsilon, attack.epsilon)
    worst, highest = pixels, torch.full((len(pixels),), -torch.inf, device=pixels.device)
    for restart in range(attack.restarts):
        found = pixels
        if attack.random_start:
            found = (pixels + _starts(pixels, attack, restart, places or range(len(pixels)))).clamp(0, 1)
        for _ in range(attack.steps):
            found = _ascend(model, found, pixels, labels, attack.step_size or attack.epsilon / 2, attack.epsilon)
        if attack.restarts == 1:
            return found
        merit = _merit(model, found, labels)
        better = merit > highest  # of several that fool the model the first
        worst = torch.where(better.view(-1, *[1] * (pixels.dim() - 1)), found, worst)
        highest = torch.where(better, merit, highest)
    return worst


def under_attack(
    models: Mapping[str, InPixels],
    source: Source,
    attack: Attack,
    *,
    images: int | None = None,
    batch_size: int = 64,
) -> dict[str, Attacked]:
    """Every model under the attack, each attacked on its own, on the first `images` of a dataset."""
    found = {}
    for name, model in models.items():
        right = still = seen = 0
        left: list[Tensor] = []
        device = model.mean.device
        with frozen(model):
            for inputs, labels in batches(source, batch_size, images):
                pixels, labels = model.pixels(inputs.to(device)), labels.to(device)
                if seen == 0:
                    check_attackable(model, pixels, labels, name)
                with torch.no_grad():
                    robust = model(pixels).argmax(1) == labels
                right += int(robust.sum())
                hit = robust.nonzero().flatten()  # an image that is wrong without the attack needs none
                if len(hit):
                    pixels, labels, places = pixels[hit], labels[hit], [seen + place for place in hit.tolist()]
                    still += int((_gradient(model, pixels, labels).flatten(1) == 0).all(1).sum())
                    adversarial = perturb(model, pixels, labels, attack, places)
                    with torch.no_grad():
                        robust[hit] = ~_fooled(model(adversarial), labels)
                left.append(robust)
                seen += len(robust)
        if seen == 0:
            raise DapError("an attack needs at least one image")
        robust = torch.cat(left)
        found[name] = Attacked(right / seen, int(robust.sum()) / seen, still / seen, seen, pack_bits(robust))
    return found


class NotAttackable(DapError):
    """Attacks by gradients would mean nothing."""


def check_attackable(model: nn.Module, pixels: Tensor, labels: Tensor, name: str = "model") -> None:
    """Refuse a model for which attacks by gradients mean nothing."""
    with torch.no_grad():
        logits, again = model(pixels), model(pixels)
    if not logits.isfinite().all():
        raise NotAttackable(f"{name}: logits are not finite on clean images")
    if not torch.equal(logits, again):
        raise NotAttackable(
            f"{name}: two forward passes on the same images differ: the model draws random numbers, and an attack on "
            "it measures them; make it deterministic"
        )
    if not _gradient(model, pixels, labels).any():
        raise NotAttackable(
            f"{name}: the gradient of the loss in the images is zero everywhere: the model rounds or detaches on the "
            "way, or is constant, and FGSM and PGD would call it robust"
        )


def _fooled(logits: Tensor, labels: Tensor) -> Tensor:
    """A model that gives no number has been fooled."""
    return (logits.argmax(1) != labels) | ~logits.isfinite().all(1)


def _gradient(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    pixels = pixels.detach().requires_grad_()
    with torch.enable_grad():
        # The sum: an image's gradient does not depend on what else is in the batch.
        loss = F.cross_entropy(model(pixels).float(), labels.long(), reduction="sum")
        if not loss.requires_grad:
            return torch.zeros_like(pixels)
        (gradient,) = torch.autograd.grad(loss, pixels, allow_unused=True)
    return torch.zeros_like(pixels) if gradient is None else gradient


def _ascend(model: nn.Module, at: Tensor, pixels: Tensor, labels: Tensor, step: float, epsilon: float) -> Tensor:
    """A step up the loss, back into the ball around `pixels`, back into [0, 1]."""
    moved = at + step * _gradient(model, at, labels).nan_to_num(0).sign()
    return (pixels + (moved - pixels).clamp(-epsilon, epsilon)).clamp(0, 1)


def _starts(pixels: Tensor, attack: Attack, restart: int, places: Sequence[int]) -> Tensor:
    noise = np.empty(pixels.shape, np.float32)
    for row, place in zip(noise, places, strict=True):
        rng = np.random.Generator(np.random.SFC64(derive_seed("attack", attack.seed, restart, place)))
        row[:] = rng.uniform(-attack.epsilon, attack.epsilon, pixels.shape[1:])
    return torch.from_numpy(noise).to(pixels)


@torch.no_grad()
def _merit(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """The loss; infinite where the model is fooled."""
    logits = model(pixels).float()
    loss = F.cross_entropy(logits, labels.long(), reduction="none")
    return torch.where(_fooled(logits, labels), torch.inf, loss)


def named(names: Iterable[str], **changes: object) -> dict[str, tuple[Attack, ...]]:
    """The attacks of `ATTACKS` that are named, each at five severities."""
    found = {}
    for name in names:
        if name not in ATTACKS:
            raise DapError(f"there is no attack {name!r}; choose one of {', '.join(ATTACKS)}")
        found[name] = tuple(replace(attack, **changes) for attack in ATTACKS[name])  # pyright: ignore[reportArgumentType]
    return found
