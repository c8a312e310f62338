"""What an attack is, and how a model does under one: at most ε is changed in every pixel."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.evaluation.bits import pack_bits
from dap.evaluation.pixels import InPixels, batches
from dap.masks.attach import frozen
from dap.runtime.sources import Source


class Attack(Protocol):
    """Perturbs images within the L∞ ball of radius ε. `dap.specs.attacks.ATTACKS` has those of the command line."""

    together: ClassVar[bool]  # whether it is called once, with the images of all domains, and not batch by batch

    def __call__(self, model: nn.Module, pixels: Tensor, labels: Tensor, places: Sequence[int]) -> Tensor:
        """Adversarial images [n, c, h, w] in [0, 1]. The model takes pixels; `places` are the images' in their dataset.

        All images are classified correctly without the attack.
        """
        ...


class Attacked(NamedTuple):
    """How a model does under an attack."""

    clean: float  # accuracy without it
    accuracy: float  # under it
    # The share of images that are right and cannot be attacked: their loss has no gradient. None: not measured, for an
    # attack on all domains together.
    no_gradient: float | None
    images: int
    right: str = ""  # which images are right under it, in order: see `dap.evaluation.bits`


def under_attack(
    model: InPixels,
    sources: Mapping[str, Source],
    attack: Attack,
    *,
    batch_size: int = 64,
    name: str = "model",
) -> dict[str, Attacked]:
    """By domain, the model under the attack. Images that are wrong without it are not attacked."""
    right: dict[str, list[Tensor]] = {domain: [] for domain in sources}
    robust: dict[str, list[Tensor]] = {domain: [] for domain in sources}
    still = dict.fromkeys(sources, 0)
    with frozen(model):
        for domains, pixels, labels, places in _portions(model, sources, batch_size, attack.together):
            if places[0] == 0:
                check_attackable(model, pixels[:batch_size], labels[:batch_size], name)
            clean = ~_fooled_in_batches(model, pixels, labels, batch_size)
            left, hit = clean.clone(), clean.nonzero().flatten()
            if len(hit):
                ours, targets = pixels[hit], labels[hit]
                if not attack.together:
                    still[next(iter(domains))] += int((gradient(model, ours, targets).flatten(1) == 0).all(1).sum())
                adversarial = attack(model, ours, targets, [places[at] for at in hit.tolist()])
                left[hit] = ~_fooled_in_batches(model, adversarial, targets, batch_size)
            sizes = list(domains.values())
            for domain, before, after in zip(domains, clean.split(sizes), left.split(sizes), strict=True):
                right[domain].append(before)
                robust[domain].append(after)
    found = {}
    for domain in sources:
        before, after = torch.cat(right[domain]), torch.cat(robust[domain])
        count, unmoved = len(after), None if attack.together else still[domain] / len(after)
        accuracies = int(before.sum()) / count, int(after.sum()) / count
        found[domain] = Attacked(*accuracies, unmoved, count, pack_bits(after))
    return found


def _portions(
    model: InPixels, sources: Mapping[str, Source], batch_size: int, together: bool
) -> Iterator[tuple[dict[str, int], Tensor, Tensor, range]]:
    """What is attacked at once: images by domain, their pixels, labels and places. A batch; or all there is."""
    device, waiting = model.mean.device, []
    sizes = dict.fromkeys(sources, 0)
    for domain, source in sources.items():
        for inputs, targets in batches(source, batch_size):
            seen, count = sizes[domain], len(targets)
            sizes[domain] += count
            pixels, labels = model.pixels(inputs.to(device)), targets.to(device)
            if together:
                waiting.append((pixels, labels))
            else:
                yield {domain: count}, pixels, labels, range(seen, seen + count)
        if sizes[domain] == 0:
            raise DapError(f"an attack needs at least one image of every domain, and {domain} has none")
    if waiting:
        pixels, labels = (torch.cat(parts) for parts in zip(*waiting, strict=True))
        yield sizes, pixels, labels, range(len(labels))


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
    if not gradient(model, pixels, labels).any():
        raise NotAttackable(
            f"{name}: the gradient of the loss in the images is zero everywhere: the model rounds or detaches on the "
            "way, or is constant, and FGSM and PGD would call it robust"
        )


def check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise DapError(f"epsilon is {epsilon}; it must be above 0")


def fooled(logits: Tensor, labels: Tensor) -> Tensor:
    """A model that gives no number has been fooled."""
    return (logits.argmax(1) != labels) | ~logits.isfinite().all(1)


@torch.no_grad()
def _fooled_in_batches(model: nn.Module, pixels: Tensor, labels: Tensor, batch_size: int) -> Tensor:
    parts = zip(pixels.split(batch_size), labels.split(batch_size), strict=True)
    return torch.cat([fooled(model(part), targets) for part, targets in parts])


def gradient(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """That of each image's cross-entropy in its pixels; zeros where there is none."""
    pixels = pixels.detach().requires_grad_()
    with torch.enable_grad():
        # The sum: an image's gradient does not depend on what else is in the batch.
        loss = F.cross_entropy(model(pixels).float(), labels.long(), reduction="sum")
        if not loss.requires_grad:
            return torch.zeros_like(pixels)
        (found,) = torch.autograd.grad(loss, pixels, allow_unused=True)
    return torch.zeros_like(pixels) if found is None else found


def ascend(model: nn.Module, at: Tensor, pixels: Tensor, labels: Tensor, step: float, epsilon: float) -> Tensor:
    """A step up the loss, back into the ball around `pixels`, back into [0, 1]."""
    return project(at + step * gradient(model, at, labels).nan_to_num(0).sign(), pixels, epsilon)


def project(moved: Tensor, pixels: Tensor, epsilon: float) -> Tensor:
    """The nearest images that are within ε of `pixels`, and in [0, 1]."""
    return (pixels + (moved - pixels).clamp(-epsilon, epsilon)).clamp(0, 1)
