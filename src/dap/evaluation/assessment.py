"""What someone who ships a model asks beside the mean: is it sure when it is wrong, and whom does it fail?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.evaluation.pixels import batches
from dap.masks.attach import frozen
from dap.runtime.batches import called, check_batch, check_labels
from dap.runtime.outputs import Outputs
from dap.runtime.sources import Source, laid_out
from dap.runtime.user_models import check_runnable, running

BINS = 15


@dataclass(frozen=True)
class Assessment:
    """A model on one dataset."""

    accuracy: float
    loss: float  # the negative log-likelihood of the labels, on average
    calibration_error: float  # expected: by how much confidence and accuracy differ
    classes: dict[int, float]  # accuracy by class, of those that occur
    images: int

    @property
    def worst_class(self) -> int:
        return min(self.classes, key=lambda label: self.classes[label])

    def row(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Plain values; `names` are those of the classes."""
        return {
            "accuracy": self.accuracy,
            "loss": self.loss,
            "calibration_error": self.calibration_error,
            "worst_class": names[self.worst_class] if names else self.worst_class,
            "worst_class_accuracy": self.classes[self.worst_class],
            "images": self.images,
        }


@torch.no_grad()
def predictions(model: nn.Module, source: Source, batch_size: int = 256, domain: str = "") -> tuple[Tensor, Tensor]:
    """Logits [n, classes] and labels [n] over a whole dataset, in eval mode, on the CPU. Errors name the `domain`."""
    check_runnable(model)
    first = next(model.parameters(), None)
    logits, labels = [], []
    with frozen(model):
        for inputs, targets in batches(source, batch_size):
            inputs = inputs if first is None else inputs.to(first.device)
            check_batch(domain, inputs, targets, mixed=False)
            with running(model, inputs):
                logits.append(Outputs.of(model(laid_out(inputs))).logits.float().cpu())
            check_labels(domain, targets, logits[-1].shape[1])
            labels.append(targets.long().cpu())
    if not logits:
        raise DapError(f"an assessment on {called(domain)} needs at least one image: give it images")
    return torch.cat(logits), torch.cat(labels)


def assess_logits(logits: Tensor, labels: Tensor) -> Assessment:
    """Accuracy and the rest, of logits [n, classes] and labels [n], such as those of `predictions`.

    >>> assess_logits(100 * torch.eye(3), torch.tensor([0, 1, 1])).classes
    {0: 1.0, 1: 0.5}
    """
    if not logits.isfinite().all():
        raise DapError("the model gives logits that are not finite: its weights are damaged, or training diverged")
    right = logits.argmax(1) == labels
    confidence = logits.double().softmax(1).max(1).values
    classes = {label: right[labels == label].double().mean().item() for label in labels.unique().tolist()}
    return Assessment(
        right.double().mean().item(),
        F.cross_entropy(logits.double(), labels).item(),
        expected_calibration_error(confidence, right),
        classes,
        len(labels),
    )


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """The mean over images of |accuracy − confidence| of their bin; bins of equal width, (0, 1/15], (1/15, 2/15], …

    >>> expected_calibration_error(torch.tensor([0.75, 0.75, 0.5]), torch.tensor([True, True, False]))
    0.3333333333333333
    """
    place = (confidence.double() * bins).ceil().clamp(1, bins).long() - 1
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, place, right.double() - confidence.double())
    return gap.abs().sum().item() / len(confidence)
