"""One value of every objective, worked out by hand.

The logits (log 3, 0) give the probabilities ¾ and ¼: the cross-entropy is log(4/3) for label 0 and log 4 for label 1.
"""

import math

import pytest
import torch
from torch import nn

from dap.errors import DapError
from dap.objectives import Coral, Erm, GroupDro, Irm, Mixup, Mldg, Mmd
from dap.objectives.objective import Gradient
from objectives.small import DOMAINS, EVEN, LOG2, LOG3, LOG4, LOW, SURE, given, near


class Rigged:
    """A random generator whose draws are known."""

    def __init__(self, order: list[int], shares: tuple[float, ...] = ()):
        self.order, self.shares, self.asked = order, list(shares), []

    def permutation(self, count: int) -> list[int]:
        assert sorted(self.order) == list(range(count))
        return self.order

    def beta(self, *shape: float) -> float:
        self.asked.append(shape)
        return self.shares.pop(0)


# ---- ERM


def test_erm_is_the_mean_over_domains_not_over_images():
    loss = Erm()(*given({"a": [EVEN], "b": [SURE, SURE]}, {"a": [0], "b": [0, 1]}))
    assert loss.item() == near((LOG2 + (LOW + LOG4) / 2) / 2)


# ---- IRM

# d/ds CE(s·z, y) at s = 1 is Σ p z − z_y = ¾ log 3 − z_y: −¼ log 3 for label 0, ¾ log 3 for label 1. Labels 1, 0, 1, 0:
# the even half's gradient is ¾ log 3, the odd half's −¼ log 3. (Halves cut in the middle would give (¼ log 3)².)
IRM_PENALTY = -(0.75 * LOG3) * (0.25 * LOG3)


@pytest.mark.parametrize(("step", "weight"), [(None, 100.0), (1, 1.0), (499, 1.0), (500, 1.0), (501, 100.0)])
def test_irm(step, weight):
    objective = Irm()
    objective.step = step
    loss = objective(*given({"a": [SURE] * 4, "b": [EVEN] * 4}, {"a": [1, 0, 1, 0], "b": [0, 1, 1, 0]}))
    risk = ((LOG4 + LOW) / 2 + LOG2) / 2
    assert loss.item() == near(risk + weight * (IRM_PENALTY + 0.0) / 2)


def test_irm_forgets_the_moments_once_when_the_weight_jumps():
    # DomainBed counts from 0: its step 500 is our 501st, the first with the final weight.
    assert [step for step in range(1, 1001) if Irm().restarts(step)] == [501]
    assert [step for step in range(1, 1001) if Irm(anneal=7).restarts(step)] == [8]


def test_irm_of_halves_of_unequal_length():
    # Three images: the even half has two (labels 1 and 0, mean gradient ¼ log 3), the odd half one (label 1).
    loss = Irm(weight=2.0)(*given({"a": [SURE] * 3}, {"a": [1, 1, 0]}))
    assert loss.item() == near((2 * LOG4 + LOW) / 3 + 2.0 * (0.25 * LOG3) * (0.75 * LOG3))


# ---- GroupDRO


def test_group_dro():
    objective = GroupDro(step_size=1.0)
    objective.prepare(nn.Identity(), ("a", "b"), 2)
    outputs, labels = given({"a": [EVEN], "b": [SURE]}, {"a": [0], "b": [1]})  # risks log 2 and log 4
    outputs["a"].logits.requires_grad_()

    objective.step = 1  # exp(risk) is 2 and 4: q = (½·2, ½·4) / 3
    assert objective(outputs, labels).item() == near(LOG2 / 3 + LOG4 * 2 / 3)
    assert objective.q.tolist() == near([1 / 3, 2 / 3])

    objective.step = 2  # q = (⅓·2, ⅔·4) / (10/3)
    loss = objective(outputs, labels)
    assert loss.item() == near(0.2 * LOG2 + 0.8 * LOG4)
    assert objective.q.tolist() == near([0.2, 0.8])
    loss.backward()  # q is a constant: q_a · (p − onehot)
    assert outputs["a"].logits.grad is not None
    assert outputs["a"].logits.grad.tolist() == [near([0.2 * -0.5, 0.2 * 0.5])]

    objective.step = None
    for _ in range(3):
        assert objective(outputs, labels).item() == near(0.2 * LOG2 + 0.8 * LOG4)
    assert objective.q.tolist() == near([0.2, 0.8])


def test_group_dro_begins_with_equal_weights_and_a_small_step():
    objective = GroupDro()
    objective.prepare(nn.Identity(), DOMAINS, 2)
    assert objective.q.tolist() == near([1 / 3] * 3)
    assert objective.step_size == 0.01


# ---- Mixup


def test_mixup_of_images_and_labels_along_the_circle():
    objective = Mixup()
    objective.prepare(nn.Identity(), ("a", "b", "c"), 3)
    batches = {
        "a": (torch.tensor([[1.0], [3.0]]), torch.tensor([0, 2])),
        "b": (torch.tensor([[5.0], [7.0], [9.0]]), torch.tensor([1, 1, 0])),
        "c": (torch.tensor([[-2.0], [-4.0]]), torch.tensor([2, 0])),
    }
    rng = Rigged([2, 0, 1], (0.25, 0.5, 1.0))  # the circle c → a → b → c
    mixed = objective.mix(batches, rng)  # pyright: ignore
    (c_a, a_b, b_c) = mixed.values()
    assert rng.asked == [(0.2, 0.2)] * 3
    assert c_a[0].flatten().tolist() == near([0.25 * -2 + 0.75 * 1, 0.25 * -4 + 0.75 * 3])
    assert c_a[1].tolist() == [near([0.75, 0, 0.25]), near([0.25, 0, 0.75])]
    assert a_b[0].flatten().tolist() == near([3.0, 5.0])  # halves; b's third image has no partner
    assert a_b[1].tolist() == [near([0.5, 0.5, 0]), near([0, 0.5, 0.5])]
    assert b_c[0].flatten().tolist() == near([5.0, 7.0])  # all of b
    assert b_c[1].tolist() == [near([0, 1, 0]), near([0, 1, 0])]


def test_mixup_of_soft_labels_and_of_hard_ones():
    outputs, labels = given({"a": [SURE], "b": [EVEN]}, {"a": [[0.3, 0.7]], "b": [[0.9, 0.1]]})
    assert Mixup()(outputs, labels).item() == near((0.3 * LOW + 0.7 * LOG4 + LOG2) / 2)
    outputs, labels = given({"a": [SURE], "b": [EVEN]}, {"a": [1], "b": [0]})
    assert Mixup()(outputs, labels).item() == near((LOG4 + LOG2) / 2)


# ---- MLDG

# Risks ½(w − t)² with t = 1, 2, 4 for domains a, b, c, at w = 0; `advance` walks 0.1 against the gradient.
MLDG_TARGETS = {"a": 1.0, "b": 2.0, "c": 4.0}


def _quadratic(weights, batches):
    (domain,) = batches
    off = weights["w"] - MLDG_TARGETS[domain]
    return Gradient(float(off**2) / 2, {"w": off, "unused": None}, {})


def _mldg(objective, order):
    weights = {"w": torch.tensor(0.0), "unused": torch.tensor(7.0)}

    def advance(weights, gradients):
        return {"w": weights["w"] - 0.1 * gradients["w"], "unused": weights["unused"]}

    return objective.gradient(_quadratic, weights, dict.fromkeys("abc"), advance, Rigged(order))


def test_mldg_with_two_domains_to_test_on():
    # a: risk ½, gradient −1, so w becomes 0.1; there b: risk ½·1.9², gradient −1.9. c takes no part in this step.
    loss, gradient, learned = _mldg(Mldg(weight=0.5), [0, 1, 2])
    assert loss == near((0.5 + 0.5 * 1.805) / 3)
    assert gradient["w"].item() == near((-1 - 0.5 * 1.9) / 3)
    assert gradient["unused"] is None
    assert learned == {}


def test_mldg_with_one_domain_to_test_on():
    # b: risk 2, gradient −2, then w = 0.2; a: risk ½, gradient −1, then w = 0.1; c there: ½·3.8², −3.8; ½·3.9², −3.9.
    loss, gradient, _ = _mldg(Mldg(meta_test=1), [1, 0, 2])
    assert loss == near((2 + 7.22 + 0.5 + 7.605) / 3)
    assert gradient["w"].item() == near((-2 - 3.8 - 1 - 3.9) / 3)


def test_mldg_keeps_a_domain_to_train_on():
    # Five domains to test on are two of three: as with two.
    assert _mldg(Mldg(meta_test=5), [2, 1, 0])[0] == near(_mldg(Mldg(), [2, 1, 0])[0])
    with pytest.raises(DapError, match="at least two source domains"):
        Mldg().gradient(_quadratic, {}, {"a": None}, lambda *_: {}, Rigged([0]))  # pyright: ignore


def test_mldg_of_given_batches_is_erm():
    loss = Mldg()(*given({"a": [EVEN], "b": [SURE]}, {"a": [0], "b": [1]}))
    assert loss.item() == near((LOG2 + LOG4) / 2)


# ---- CORAL

# Means (1, 0) and (1, 2): gap² (0 + 4) / 2. Covariances (over n − 1) diag(2, 0), diag(0, 2): gap² (4 + 0 + 0 + 4) / 4.
FLAT, TALL = [[0.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [1.0, 3.0]]
CORAL_GAP = 2.0 + 2.0


def test_coral():
    outputs, labels = given({"a": [EVEN] * 2, "b": [EVEN] * 2}, {"a": [0, 1], "b": [0, 1]}, {"a": FLAT, "b": TALL})
    assert Coral()(outputs, labels).item() == near(LOG2 + CORAL_GAP)
    assert Coral(weight=0.5)(outputs, labels).item() == near(LOG2 + 0.5 * CORAL_GAP)


def test_coral_of_three_domains_and_of_one():
    zeros, ones = {d: [EVEN] * 2 for d in "abc"}, {d: [0, 1] for d in "abc"}
    outputs, labels = given(zeros, ones, {"a": FLAT, "b": TALL, "c": FLAT})
    assert Coral()(outputs, labels).item() == near(LOG2 + (CORAL_GAP + 0 + CORAL_GAP) / 3)
    assert Coral()({"b": outputs["b"]}, {"b": labels["b"]}).item() == near(LOG2)


def test_coral_counts_the_covariance_off_the_diagonal():
    # Means equal; covariances [[2, 2], [2, 2]] and [[2, −2], [−2, 2]]: gap² (0 + 16 + 16 + 0) / 4.
    rising, falling = [[0.0, 0.0], [2.0, 2.0]], [[0.0, 2.0], [2.0, 0.0]]
    same = given({"a": [EVEN] * 2, "b": [EVEN] * 2}, {"a": [0, 1], "b": [0, 1]}, {"a": rising, "b": falling})
    assert Coral()(*same).item() == near(LOG2 + 8.0)


def test_coral_has_no_covariance_of_one_image():
    lone = given({"a": [EVEN], "b": [EVEN]}, {"a": [0], "b": [1]}, {"a": [[0.0, 1.0]], "b": [[1.0, 0.0]]})
    with pytest.raises(DapError, match="at least two images of each domain"):
        Coral()(*lone)


# ---- MMD


def _lines(a, b):
    """Features on a line, with logits whose risk is log 2."""
    features = {"a": [[x] for x in a], "b": [[x] for x in b]}
    return given({"a": [EVEN] * len(a), "b": [EVEN] * len(b)}, {"a": [0] * len(a), "b": [0] * len(b)}, features)


def test_mmd_of_one_kernel():
    # exp(−log 2 · d²) = 2^(−d²). Within {0, 1}: (1 + ½ + ½ + 1) / 4; within {2}: 1; between: (1/16 + ½) / 2.
    loss = Mmd(weight=2.0, bandwidths=(LOG2,))(*_lines([0.0, 1.0], [2.0]))
    assert loss.item() == near(LOG2 + 2.0 * (0.75 + 1 - 2 * 0.28125))


def test_mmd_sums_kernels_from_a_thousandth_to_a_thousand():
    bandwidths = [1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3]

    def kernel(squared):
        return sum(math.exp(-bandwidth * squared) for bandwidth in bandwidths)

    within = (2 * 7 + 2 * kernel(1.0)) / 4
    between = (kernel(4.0) + kernel(1.0)) / 2
    assert Mmd()(*_lines([0.0, 1.0], [2.0])).item() == near(LOG2 + within + 7 - 2 * between)


def test_mmd_of_equal_domains_and_of_one():
    outputs, labels = _lines([0.5, -1.0], [-1.0, 0.5])
    assert Mmd()(outputs, labels).item() == near(LOG2, abs=1e-5)
    assert Mmd()({"a": outputs["a"]}, {"a": labels["a"]}).item() == near(LOG2)
