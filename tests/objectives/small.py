"""Networks, data and outputs small enough to follow by hand."""

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from dap.models.classifier import Classifier
from dap.objectives import OBJECTIVES, Objective
from dap.runtime.outputs import Outputs

DOMAINS = ("art", "photo", "sketch")
CLASSES = 3
SIDE = 4  # of an image, which has one channel
Batches = dict[str, tuple[Tensor, Tensor]]


class Staged(nn.Module):
    """Two stages of convolutions, with a norm between them; gives pooled features and both stages' maps."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.stage = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        first = self.norm(self.stem(images)).relu()
        second = self.stage(first).tanh()
        return second.mean((2, 3)), (first, second)


def flat_classifier(seed: int = 0) -> Classifier:
    """Flatten, linear, relu, linear."""
    torch.manual_seed(seed)
    return Classifier.of(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 6), nn.ReLU()), nn.Linear(6, CLASSES))


def staged_classifier(seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    model = Classifier.of(Staged(), nn.Linear(5, CLASSES), stage_channels=(3, 5))
    norm = model.get_submodule("network.features.norm")
    assert isinstance(norm, nn.BatchNorm2d)
    nn.init.normal_(norm.get_buffer("running_mean"), 0, 0.1)
    nn.init.uniform_(norm.get_buffer("running_var"), 0.5, 1.5)
    return model.eval()


def draw_batches(seed: int = 0, sizes: Sequence[int] = (6, 6, 6)) -> Batches:
    """Images that a classifier can learn from, of domains that differ in brightness."""
    generator = torch.Generator().manual_seed(seed)
    batches = {}
    for place, (domain, size) in enumerate(zip(DOMAINS, sizes, strict=True)):
        labels = torch.randint(CLASSES, (size,), generator=generator)
        images = torch.randn(size, 1, SIDE, SIDE, generator=generator) + 0.4 * place
        images[torch.arange(size), 0, labels, labels] += 2.0
        batches[domain] = images, labels
    return batches


def prepared(name: str, model: nn.Module, seed: int = 0, **options: object) -> Objective:
    """An objective by name, ready for the three domains."""
    objective = OBJECTIVES[name](**options)
    torch.manual_seed(seed)
    objective.prepare(model, DOMAINS, CLASSES)
    return objective


def given(
    logits: Mapping[str, list], labels: Mapping[str, list], features: Mapping[str, list] | None = None
) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
    """Outputs and labels from plain numbers."""
    outputs = {
        domain: Outputs(torch.tensor(rows).float(), torch.tensor(features[domain]).float() if features else None)
        for domain, rows in logits.items()
    }
    return outputs, {domain: torch.tensor(row) for domain, row in labels.items()}


# For values by hand. The logits (log 3, 0) give the probabilities ¾ and ¼: the cross-entropy is log(4/3) for label 0
# and log 4 for label 1.
LOG2, LOG3, LOG4 = math.log(2), math.log(3), math.log(4)
LOW = math.log(4 / 3)
SURE, EVEN = [LOG3, 0.0], [0.0, 0.0]


def near(value: float, **options: float) -> object:
    return pytest.approx(value, **{"rel": 1e-5, "abs": 1e-6, **options})
