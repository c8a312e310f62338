"""AutoAttack: four attacks without options to choose, the strongest answer to what FGSM and PGD leave open."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.evaluation.attacks import check_epsilon


@dataclass(frozen=True)
class AutoAttack:
    """AutoAttack's standard version in the L∞ ball of radius `epsilon`.

    It takes thousands of passes, whose number hardly depends on that of images: domains are attacked together. Below
    ten classes its targeted attacks aim at all others; below four, where its difference of logits ratio is not defined,
    it is APGD with cross-entropy, targeted FAB, and Square.
    """

    epsilon: float = 8 / 255
    seed: int = 0
    batch_size: int = 64
    together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if find_spec("pyautoattack") is None:
            raise DapError("AutoAttack needs pyautoattack: pip install 'dap[robustness]'")

    def __call__(self, model: nn.Module, pixels: Tensor, labels: Tensor, places: Sequence[int] = ()) -> Tensor:
        from pyautoattack import AutoAttack as Library  # pyright: ignore[reportMissingImports]

        with torch.no_grad():
            classes = model(pixels[:1]).shape[1]
        options = {} if classes >= 4 else {"version": "custom", "attacks": ["apgd-ce", "fab-t", "square"]}
        with torch.random.fork_rng([]):
            attack = Library(model, norm="Linf", eps=self.epsilon, seed=self.seed, device=pixels.device, **options)
            attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
            found, _ = attack.run_standard_evaluation(pixels, labels.long(), batch_size=self.batch_size)
        return found
