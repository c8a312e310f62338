"""AutoAttack: four attacks without options to choose, the strongest answer to what FGSM and PGD leave open."""

from importlib.util import find_spec

import torch

from dap.errors import DapError
from dap.evaluation.attacks import Attacked, check_attackable
from dap.evaluation.pixels import InPixels, batches
from dap.masking import frozen
from dap.sources import Source


def check_auto_attack() -> None:
    if find_spec("pyautoattack") is None:
        raise DapError("AutoAttack needs pyautoattack: pip install 'dap[robustness]'")


def auto_attack(
    model: InPixels,
    source: Source,
    epsilon: float = 8 / 255,
    *,
    images: int | None = None,
    batch_size: int = 64,
    seed: int = 0,
    name: str = "model",
) -> Attacked:
    """The model under AutoAttack's standard version, in the L∞ ball of radius `epsilon`. It takes thousands of passes.

    Below ten classes its targeted attacks aim at all others; below four, where its difference of logits ratio is not
    defined, it is APGD with cross-entropy, targeted FAB, and Square.
    """
    check_auto_attack()
    from pyautoattack import AutoAttack  # pyright: ignore[reportMissingImports]

    parts = list(batches(source, batch_size, images))
    if not parts:
        raise DapError("an attack needs at least one image")
    device = model.mean.device
    pixels = torch.cat([model.pixels(inputs.to(device)) for inputs, _ in parts])
    labels = torch.cat([targets.to(device).long() for _, targets in parts])
    with frozen(model), torch.random.fork_rng([]):
        check_attackable(model, pixels[:batch_size], labels[:batch_size], name)
        with torch.no_grad():
            logits = torch.cat([model(part) for part in pixels.split(batch_size)])
        clean, classes = logits.argmax(1) == labels, logits.shape[1]
        options = {} if classes >= 4 else {"version": "custom", "attacks": ["apgd-ce", "fab-t", "square"]}
        attack = AutoAttack(model, norm="Linf", eps=epsilon, seed=seed, device=device, **options)
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
        still = clean.nonzero()[:, 0]  # what is wrong without the attack needs none
        right = 0
        if len(still):
            found, _ = attack.run_standard_evaluation(pixels[still], labels[still], batch_size=batch_size)
            with torch.no_grad():
                logits = torch.cat([model(part) for part in found.split(batch_size)])
            right = int((logits.argmax(1) == labels[still]).sum())
    return Attacked(int(clean.sum()) / len(labels), right / len(labels), None, len(labels))
