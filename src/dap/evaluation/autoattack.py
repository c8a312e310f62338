"""AutoAttack: four attacks without options to choose, the strongest answer to what FGSM and PGD leave open."""

from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch import Tensor

from dap.errors import DapError
from dap.evaluation.attacks import Attacked, check_attackable
from dap.evaluation.bits import pack_bits
from dap.evaluation.pixels import InPixels, batches
from dap.masks.attach import frozen
from dap.runtime.sources import Source


def check_auto_attack() -> None:
    if find_spec("pyautoattack") is None:
        raise DapError("AutoAttack needs pyautoattack: pip install 'dap[robustness]'")


def auto_attack(
    model: InPixels,
    sources: Mapping[str, Source],
    epsilon: float = 8 / 255,
    *,
    batch_size: int = 64,
    seed: int = 0,
    name: str = "model",
) -> dict[str, Attacked]:
    """By domain, the model under AutoAttack's standard version, in the L∞ ball of radius `epsilon`.

    It takes thousands of passes, whose number hardly depends on that of images: domains are attacked together. Below
    ten classes its targeted attacks aim at all others; below four, where its difference of logits ratio is not defined,
    it is APGD with cross-entropy, targeted FAB, and Square.
    """
    check_auto_attack()
    from pyautoattack import AutoAttack  # pyright: ignore[reportMissingImports]

    device = model.mean.device
    parts = {domain: list(batches(source, batch_size)) for domain, source in sources.items()}
    if not all(parts.values()):
        raise DapError("an attack needs at least one image of every domain")
    sizes = [sum(len(targets) for _, targets in found) for found in parts.values()]
    pixels = torch.cat([model.pixels(inputs.to(device)) for found in parts.values() for inputs, _ in found])
    labels = torch.cat([targets.to(device).long() for found in parts.values() for _, targets in found])
    with frozen(model), torch.random.fork_rng([]):
        check_attackable(model, pixels[:batch_size], labels[:batch_size], name)
        clean, classes = _right(model, pixels, labels, batch_size)
        options = {} if classes >= 4 else {"version": "custom", "attacks": ["apgd-ce", "fab-t", "square"]}
        attack = AutoAttack(model, norm="Linf", eps=epsilon, seed=seed, device=device, **options)
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
        robust, still = torch.zeros_like(clean), clean.nonzero()[:, 0]  # what is wrong without the attack needs none
        if len(still):
            found, _ = attack.run_standard_evaluation(pixels[still], labels[still], batch_size=batch_size)
            robust[still], _ = _right(model, found, labels[still], batch_size)
    rows = zip(parts, clean.split(sizes), robust.split(sizes), strict=True)
    return {
        domain: Attacked(int(ours.sum()) / len(ours), int(left.sum()) / len(left), None, len(ours), pack_bits(left))
        for domain, ours, left in rows
    }


@torch.no_grad()
def _right(model: InPixels, pixels: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, int]:
    """Which images are right, and how many classes there are."""
    logits = torch.cat([model(part) for part in pixels.split(batch_size)])
    return (logits.argmax(1) == labels) & logits.isfinite().all(1), logits.shape[1]
