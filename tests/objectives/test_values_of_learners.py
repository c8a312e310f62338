"""One value of every objective that learns beside the model, worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dap.objectives import Cdann, Dann, Miro
from dap.runtime.outputs import Outputs
from objectives.small import DOMAINS, EVEN, LOG2, LOG3, LOG4, LOW, SURE, given, near, staged_classifier

# ---- DANN


def adversary(kind, **options):
    """A discriminator whose layers pass features on as they are, then multiply them by log 3."""
    objective = kind(width=2, **options)
    objective.prepare(SimpleNamespace(feature_size=2), ("a", "b"), 3)
    first, second, last = [layer for layer in objective.discriminator if isinstance(layer, nn.Linear)]
    for layer, scale in ((first, 1.0), (second, 1.0), (last, LOG3)):
        nn.init.zeros_(layer.bias)
        layer.weight.data = scale * torch.eye(2)
    return objective


def seen(features, labels=None):
    rows = {"a": [[0.0, LOG3, 0.0]], "b": [[0.0, 0.0, 0.0]] * 2}  # p = (1/5, 3/5, 1/5), and a third each
    return given(rows, labels or {"a": [1], "b": [0, 2]}, features)


# (1, 0) leaves the discriminator as (log 3, 0), and (−1, 0), after a relu, as (0, 0): of domain a the first costs
# log(4/3), of b the same features cost log 4 and the others log 2.
FEATURES = {"a": [[1.0, 0.0]], "b": [[1.0, 0.0], [-1.0, 0.0]]}
DANN_RISK = (math.log(5 / 3) + LOG3 + LOG3) / 3
DANN_LOSS = (LOW + LOG4 + LOG2) / 3


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_dann_moves_model_and_discriminator_in_turn(weight):
    objective = adversary(Dann, weight=weight)
    for step, expected in ((1, DANN_RISK - weight * DANN_LOSS), (2, DANN_LOSS), (3, DANN_RISK - weight * DANN_LOSS)):
        objective.step = step
        assert objective(*seen(FEATURES)).item() == near(expected)
    objective.step = None
    assert objective(*seen(FEATURES)).item() == near(DANN_RISK - weight * DANN_LOSS)


def test_dann_turns():
    assert [Dann().turn(step) for step in range(1, 6)] == ["model", "learned", "model", "learned", "model"]
    # DomainBed counts from 1 and moves the model when the count, modulo 1 + d, is not below d.
    models = [step for step in range(1, 13) if Dann(discriminator_steps=3).turn(step) == "model"]
    assert models == [step for step in range(1, 13) if not step % 4 < 3] == [3, 7, 11]


def test_dann_penalises_the_slope_of_the_discriminator():
    # The slope of one image's cross-entropy is log 3 · (p − onehot) where the relu is open, in the first coordinate:
    # −¼ log 3 and ¾ log 3 at (1, 0), and 0 at (−1, 0). Squared, and the mean over images.
    slope = ((0.25 * LOG3) ** 2 + (0.75 * LOG3) ** 2 + 0) / 3
    objective = adversary(Dann, gradient_penalty=0.4)
    for step, expected in ((1, DANN_RISK - DANN_LOSS - 0.4 * slope), (2, DANN_LOSS + 0.4 * slope)):
        objective.step = step
        assert objective(*seen(FEATURES)).item() == near(expected)


@pytest.mark.parametrize("kind", [Dann, Cdann])
def test_dann_has_a_discriminator_of_three_layers_256_wide(kind):
    objective = kind()
    objective.prepare(SimpleNamespace(feature_size=10), DOMAINS, 7)
    layers = [layer for layer in objective.discriminator if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(10, 256), (256, 256), (256, 3)]
    assert objective.betas == (0.5, 0.9)
    assert objective.learning_rate(5e-5) == 5e-5
    assert kind(discriminator_rate=1e-3).learning_rate(5e-5) == 1e-3
    deep = kind(depth=5, width=4)
    deep.prepare(SimpleNamespace(feature_size=10), DOMAINS, 7)
    assert sum(isinstance(layer, nn.Linear) for layer in deep.discriminator) == 5


# ---- C-DANN


def conditional(rows=((1.0, 0.0), (0.0, 0.0), (-2.0, 0.0))):
    objective = adversary(Cdann)
    objective.embedding.weight.data = torch.tensor(rows)
    return objective


def test_cdann_weighs_classes_equally_and_sees_them():
    # Class 0 adds (1, 0) to the features, class 2 takes (2, 0) off: a sees class 0 at (1, 0), b class 0 at (1, 0) and
    # class 2 at (−1, 0). Class 0 has two images, class 2 one; of three classes, each image of class 0 counts 1/6 and
    # that of class 2 counts 1/3, as DomainBed counts classes: all up to the largest in the batch.
    features = {"a": [[0.0, 0.0]], "b": [[0.0, 0.0], [1.0, 0.0]]}
    labels = {"a": [0], "b": [0, 2]}
    objective = conditional()
    objective.step = 2
    loss = LOW / 6 + LOG4 / 6 + LOG2 / 3
    assert objective(*seen(features, labels)).item() == near(loss)
    objective.step = 1
    risk = (math.log(5) + 2 * LOG3) / 3  # a's image, with p = (1/5, 3/5, 1/5), is of class 0
    assert objective(*seen(features, labels)).item() == near(risk - loss)


def test_cdann_without_the_last_class():
    # Classes 0 and 1 only: of two classes, an image of class 0 counts ½ and each of class 1 a quarter.
    objective = conditional(rows=((0.0, 0.0), (0.0, 0.0), (9.0, 9.0)))
    objective.step = 2
    loss = objective(*seen(FEATURES, {"a": [0], "b": [1, 1]}))
    assert loss.item() == near(LOW / 2 + LOG4 / 4 + LOG2 / 4)


# ---- MIRO


def variances(objective):
    return [math.log1p(math.exp(b)) + 1e-5 for row in objective.spread for b in row.flatten().tolist()]


def test_miro_begins_with_a_variance_of_a_tenth_for_every_channel():
    objective = Miro()
    objective.prepare(staged_classifier(), DOMAINS, 3)
    assert [tuple(b.shape) for b in objective.spread] == [(3, 1, 1), (5, 1, 1)]
    assert variances(objective) == near([0.1] * 8)
    assert objective.learning_rate(5e-5) == near(5e-4, abs=0)
    assert sorted(objective.learned()) == ["spread.0", "spread.1"]


def test_miro_weighs_less_where_the_papers_do():
    assert {
        suite: Miro(**Miro.defaults_for(suite)).weight for suite in ("PACS", "VLCS", "OfficeHome", "DomainNet")
    } == {
        "PACS": 0.01,
        "VLCS": 0.01,
        "OfficeHome": 0.1,
        "DomainNet": 0.1,
    }


def test_miro():
    # One stage of two channels of one pixel, one stage of one channel of two pixels; variances 0.1, 0.4 and 0.1.
    objective = Miro(weight=0.5)
    objective.prepare(SimpleModel((2, 1)), ("a", "b"), 2)
    objective.spread[0].data[1] = math.log(math.expm1(0.4 - 1e-5))
    assert variances(objective) == near([0.1, 0.4, 0.1])
    logits = {"a": EVEN, "b": SURE}
    gaps = {"a": ([0.1, 0.2], [0.3, 0.0]), "b": ([0.0, 0.0], [0.0, 0.0])}
    outputs = {
        domain: Outputs(
            torch.tensor([logits[domain]]),
            stages=(5 + torch.tensor(first).view(1, 2, 1, 1), -3 + torch.tensor(second).view(1, 1, 1, 2)),
            reference=(torch.full((1, 2, 1, 1), 5.0), torch.full((1, 1, 1, 2), -3.0)),
        )
        for domain, (first, second) in gaps.items()
    }
    loss = objective(outputs, {"a": torch.tensor([0]), "b": torch.tensor([1])})
    # Σ over stages of ½ · mean((f − f₀)²/v + log v):
    logs = (math.log(0.1) + math.log(0.4)) / 2 / 2 + math.log(0.1) / 2
    squares = (0.01 / 0.1 + 0.04 / 0.4) / 2 / 2 + (0.09 / 0.1 + 0) / 2 / 2
    assert loss.item() == near((LOG2 + LOG4) / 2 + 0.5 * (squares / 2 + logs), rel=1e-4)


def test_miro_remembers_the_pretrained_network():
    model = staged_classifier()
    images = torch.randn(2, 1, 4, 4)
    before = model(images, full=True).stages
    objective = Miro()
    objective.prepare(model, DOMAINS, 3)
    for weight in model.parameters():
        weight.data.add_(1.0)
    model.train()
    for then, now in zip(before, objective.observe(images), strict=True):
        assert torch.equal(then, now)
        assert not now.requires_grad


class SimpleModel(nn.Module):
    def __init__(self, stage_channels: tuple[int, ...]):
        super().__init__()
        self.stage_channels = stage_channels
