"""Attacks: against foolbox, within their ball, and on models that cannot be attacked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from conftest import make_model
from dap.errors import DapError
from dap.evaluation.attacks import Attack, Attacked, check_attackable, under_attack
from dap.evaluation.bits import unpack_bits
from dap.evaluation.fgsm import FGSM
from dap.evaluation.pgd import PGD
from dap.evaluation.pixels import InPixels, batches
from dap.runs.evaluating import attacks_of
from dap.runtime.sources import Source
from dap.specs import EvaluateSpec
from dap.specs.attacks import EPSILONS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def victim(kind: str = "convolutional") -> InPixels:
    return InPixels(make_model(kind), MEAN, STD).eval()


def images(count: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, 8, 8), generator=generator) / 255
    return pixels, torch.randint(3, (count,), generator=generator)


def attacked(model: InPixels, data: Source, attack: Attack, **options: int) -> Attacked:
    return under_attack(model, {"domain": data}, attack, **options)["domain"]


def test_normalisation_is_inside():
    model, (pixels, _) = victim(), images()
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (MEAN, STD))
    assert torch.allclose(model(pixels), model.model((pixels - mean) / std))
    assert torch.allclose(model.pixels((pixels - mean) / std), pixels, atol=1e-6)


@pytest.mark.parametrize("kind", ["convolutional", "attention"])
@pytest.mark.parametrize("severity", range(5))
@pytest.mark.filterwarnings("ignore")  # foolbox's own
def test_equal_to_foolbox_element_for_element(kind, severity):
    foolbox = pytest.importorskip("foolbox", reason="needs foolbox, which comes with the dev extra")
    model, (pixels, labels) = victim(kind), images()
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1))
    epsilon, steps = EPSILONS[severity], (5, 5, 10, 10, 10)[severity]
    fgsm = foolbox.attacks.LinfFastGradientAttack()
    raw, _, _ = fgsm(theirs, pixels, labels, epsilons=epsilon)
    assert torch.equal(FGSM(epsilon)(model, pixels, labels), raw)
    pgd = foolbox.attacks.LinfProjectedGradientDescentAttack(abs_stepsize=epsilon / 2, steps=steps, random_start=False)
    raw, _, _ = pgd(theirs, pixels, labels, epsilons=epsilon)
    ours = PGD(epsilon, steps, random_start=False)(model, pixels, labels)
    assert torch.equal(ours, raw)


@given(st.floats(1e-4, 0.5), st.integers(1, 4), st.booleans(), st.integers(1, 2), st.integers(0, 99))
def test_the_perturbation_stays_in_its_ball_and_in_the_image(epsilon, steps, random_start, restarts, seed):
    model, (pixels, labels) = victim(), images(4, seed)
    attack = PGD(epsilon, steps, random_start=random_start or restarts > 1, restarts=restarts, seed=seed)
    found = attack(model, pixels, labels)
    assert ((found - pixels).abs() <= epsilon + 1e-6).all()
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_attacks_hurt_and_more_of_them_hurts_more():
    model, (pixels, labels) = victim(), images(60)
    labels = model(pixels).argmax(1)  # all are right
    data = TensorDataset((pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), labels)
    found = [attacked(model, data, PGD(e / 255, 10)) for e in (1, 8, 64)]
    assert [one.clean for one in found] == [1.0, 1.0, 1.0]
    accuracies = [one.accuracy for one in found]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] < 0.5
    once = attacked(model, data, PGD(8 / 255, 2)).accuracy
    assert attacked(model, data, PGD(8 / 255, 2, restarts=4)).accuracy <= once


def test_random_starts_are_a_function_of_the_seed_and_the_image():
    model, (pixels, labels) = victim(), images()
    attack = PGD(8 / 255, 3)
    whole = attack(model, pixels, labels)
    assert torch.equal(whole, attack(model, pixels, labels))
    halves = torch.cat([attack(model, pixels[part], labels[part], part) for part in (range(5), range(5, 12))])
    assert torch.allclose(whole, halves, atol=1e-6)
    assert not torch.equal(whole, PGD(8 / 255, 3, seed=1)(model, pixels, labels))
    assert not torch.equal(whole, PGD(8 / 255, 3, random_start=False)(model, pixels, labels))


def test_images_that_are_wrong_anyway_are_left_out_and_the_rest_keep_their_starts():
    model, (pixels, _) = victim(), images(40)
    labels = model(pixels).argmax(1)
    labels[::3] = (labels[::3] + 1) % 3  # wrong from the start, one in each batch at least
    data = TensorDataset((pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), labels)
    attack = PGD(16 / 255, 1)  # of one step: where it starts shows
    found = attacked(model, data, attack, batch_size=7)
    alone = torch.cat([attack(model, pixels[[i]], labels[[i]], [i]) for i in range(40)])
    expected = (model(pixels).argmax(1) == labels) & (model(alone).argmax(1) == labels)
    assert torch.equal(torch.from_numpy(unpack_bits(found.right)), expected)
    assert (found.clean, found.images) == (26 / 40, 40)
    elsewhere = torch.cat([attack(model, pixels[[i]], labels[[i]], [0]) for i in range(40)])
    assert not torch.equal(model(elsewhere).argmax(1) == labels, model(alone).argmax(1) == labels)


class Rounding(nn.Module):
    def forward(self, inputs):
        return inputs.round().mean((2, 3))


class Detached(nn.Module):
    def forward(self, inputs):
        return inputs.detach().mean((2, 3))


class Noisy(nn.Module):
    def forward(self, inputs):
        return inputs.mean((2, 3)) + torch.randn(len(inputs), 3)


class Broken(nn.Module):
    def forward(self, inputs):
        return inputs.mean((2, 3)) * torch.nan


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Rounding(), "the gradient of the loss in the images is zero everywhere"),
        (Detached(), "the gradient of the loss in the images is zero everywhere"),
        (Noisy(), "two forward passes on the same images differ"),
        (Broken(), "logits are not finite on clean images"),
    ],
)
def test_what_cannot_be_attacked_is_refused(model, message):
    pixels, labels = images()
    wrapped = InPixels(model, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(DapError, match=message):
        check_attackable(wrapped, pixels, labels)
    with pytest.raises(DapError, match=message):
        attacked(wrapped, TensorDataset(pixels, labels), PGD(2 / 255))


def test_a_model_that_an_attack_drives_to_no_number_is_fooled():
    class Fragile(nn.Module):
        def forward(self, inputs):
            logits = inputs.mean((2, 3))
            return torch.where(logits > 0.5, torch.nan, logits)

    pixels = torch.full((4, 3, 8, 8), 0.499)
    pixels[:, 0] += 0.0005
    data = TensorDataset(pixels, torch.zeros(4, dtype=torch.long))
    found = attacked(InPixels(Fragile(), (0.0,) * 3, (1.0,) * 3), data, PGD(8 / 255))
    assert (found.clean, found.accuracy) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"restarts": 3, "random_start": False}, "3 restarts from the same place are one"),
    ],
)
def test_options_that_mean_nothing(options, message):
    with pytest.raises(DapError, match=message):
        PGD(0.1, **options)


def test_images_without_a_gradient_are_counted():
    class HalfBlind(nn.Module):
        def forward(self, inputs):
            logits = inputs.mean((2, 3))
            return torch.where((inputs[:, :1, 0, 0] > 0.5), logits.detach(), logits)

    pixels, labels = images(40)
    found = attacked(InPixels(HalfBlind(), (0.0,) * 3, (1.0,) * 3), TensorDataset(pixels, labels), FGSM(0.5 / 255))
    right = pixels.mean((2, 3)).argmax(1) == labels
    blind = right & (pixels[:, 0, 0, 0] > 0.5)
    assert found.no_gradient == pytest.approx(blind.float().mean().item())
    assert 0 < found.no_gradient < found.clean


def test_severities_are_those_of_the_paper():
    made = attacks_of(EvaluateSpec("run", attacks=("fgsm", "pgd"), restarts=3, seed=4))
    epsilons = [value / 255 for value in (0.5, 1, 2, 4, 8)]
    assert list(made["fgsm"].values()) == [FGSM(epsilon) for epsilon in epsilons]
    assert list(made["pgd"].values()) == [
        PGD(epsilon, steps, restarts=3, seed=4) for epsilon, steps in zip(epsilons, (5, 5, 10, 10, 10), strict=True)
    ]
    for attack in (FGSM, PGD):
        with pytest.raises(DapError, match="epsilon is 0; it must be above 0"):
            attack(0)


def test_so_many_images_of_iterables_too():
    pixels, labels = images(12)
    halves = [(pixels[:6], labels[:6]), (pixels[6:], labels[6:])]
    for count in (4, 6, 7, 12, 99):
        assert sum(len(part) for _, part in batches(halves, 5, count)) == min(count, 12)
    whole = torch.cat([part for part, _ in batches(halves, 5, 7)])
    assert torch.equal(whole, pixels[:7])
