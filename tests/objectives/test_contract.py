"""What every objective promises."""

import copy
import inspect
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

from dap.config import TrainConfig
from dap.errors import DapError
from dap.method.gradients import Network, forward, loss_from, loss_of, task_gradient
from dap.objectives import OBJECTIVES, Objective
from dap.runtime.outputs import Outputs, asking
from dap.training import train
from dap.training.step import Trainer
from objectives.small import CLASSES, SIDE, draw_batches, flat_classifier, prepared, staged_classifier

MASK_LOSS_IS_ERMS = ("erm", "mixup", "mldg")
KNOW_THEIR_DOMAINS = ("group_dro", "dann", "cdann")
EVERY = pytest.mark.parametrize("name", OBJECTIVES)


def trained(name: str, steps: int = 5, **options) -> tuple[nn.Module, Objective]:
    """A model and its objective after a few steps together."""
    model = staged_classifier()
    objective = prepared(name, model, **options)
    trainer = Trainer(model, objective, TrainConfig(steps=steps, learning_rate=0.05))
    for seed in range(steps):
        trainer.step(draw_batches(seed))
    return model, objective


def outputs_of(model: nn.Module, objective: Objective, batches) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
    """Outputs that are leaves of the graph."""
    outputs, labels = forward(partial(model, **asking(model, objective.needs)), objective, batches, joint=False)
    leaves = {d: o.replaced([t.detach().requires_grad_() for t in o.tensors()]) for d, o in outputs.items()}
    return leaves, labels


def network_of(model: nn.Module, objective: Objective) -> Network:
    options = asking(model, objective.needs)
    return lambda weights, inputs: functional_call(model, dict(weights), (inputs,), options)


def frozen_loss(model: nn.Module, objective: Objective, seed: int = 50) -> float:
    assert objective.step is None
    return loss_of(network_of(model, objective), objective, dict(model.named_parameters()), draw_batches(seed))


def state_of(objective: Objective) -> dict[str, Tensor]:
    return copy.deepcopy(objective.state_dict())


def assert_same_state(objective: Objective, before: dict[str, Tensor]) -> None:
    after = objective.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


# ---- the loss


@EVERY
@pytest.mark.parametrize("step", [None, 1, 2])
def test_the_loss_is_one_finite_number_with_a_gradient(name, step):
    model, objective = trained(name)
    outputs, labels = outputs_of(model, objective, draw_batches(50))
    objective.step = step
    loss = objective(outputs, labels)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    tensors = [tensor for output in outputs.values() for tensor in output.tensors()]
    found = torch.autograd.grad(loss, tensors, allow_unused=True)
    assert all(gradient is None or torch.isfinite(gradient).all() for gradient in found)
    learning = step is not None and objective.turn(step) == "learned"
    at_logits = torch.autograd.grad(
        objective(outputs, labels), [o.logits for o in outputs.values()], allow_unused=learning
    )
    # The discriminator's own loss does not see the logits.
    assert all((gradient is None) if learning else gradient.abs().sum() > 0 for gradient in at_logits)


@EVERY
def test_the_frozen_loss_has_the_gradient_of_its_own_slope(name):
    # Kernels that are wide enough for a difference of single-precision numbers to tell the slope.
    model, objective = trained(name, **({"bandwidths": (0.1, 1.0, 10.0)} if name == "mmd" else {}))
    outputs, labels = outputs_of(model, objective, draw_batches(50))
    tensors = [tensor for output in outputs.values() for tensor in output.tensors()]
    found = torch.autograd.grad(objective(outputs, labels), tensors, allow_unused=True)
    generator = torch.Generator().manual_seed(0)
    used = [gradient is not None for gradient in found]
    directions = [torch.randn(tensor.shape, generator=generator) * on for tensor, on in zip(tensors, used, strict=True)]
    # Along the gradient too: a random direction may miss much of it.
    directions = [d + (0 if g is None else g / g.norm()) for d, g in zip(directions, found, strict=True)]
    slope = sum((g * d).sum().item() for g, d in zip(found, directions, strict=True) if g is not None)

    def moved(by: float) -> float:
        shifted = iter([tensor.detach() + by * d for tensor, d in zip(tensors, directions, strict=True)])
        there = {
            domain: output.replaced([next(shifted) for _ in output.tensors()]) for domain, output in outputs.items()
        }
        return objective(there, labels).item()

    size = 2e-3
    assert (moved(size) - moved(-size)) / (2 * size) == pytest.approx(slope, rel=0.02, abs=0.01)


# IRM takes the even and the odd images apart.
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "irm"])
def test_the_loss_does_not_depend_on_the_order_of_images(name):
    model, objective = trained(name)
    batches = draw_batches(50)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    turned = {domain: (x[order], y[order]) for domain, (x, y) in batches.items()}
    losses = [objective(*outputs_of(model, objective, each)).item() for each in (batches, turned)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@EVERY
def test_the_loss_is_computed_in_full_precision_where_the_model_is_not(name):
    model, objective = trained(name)
    outputs, labels = outputs_of(model, objective, draw_batches(50))
    if name in ("coral", "mmd"):  # as of a large network: many, and far from 0 for the distances between them
        torch.manual_seed(0)
        wide = {domain: 0.5 + 0.05 * torch.randn(len(y), 64) for domain, y in labels.items()}
        outputs = {domain: output._replace(features=wide[domain]) for domain, output in outputs.items()}
    expected = loss_from(objective, outputs, labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = loss_from(objective, outputs, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_mldg_without_a_domain_to_test_on_is_refused():
    with pytest.raises(DapError, match="meta_test is 0; MLDG needs at least 1"):
        OBJECTIVES["mldg"](meta_test=0)


@pytest.mark.parametrize("name", MASK_LOSS_IS_ERMS)
def test_masks_are_learnt_under_erms_loss(name):
    model, objective = trained(name)
    assert frozen_loss(model, objective) == frozen_loss(model, OBJECTIVES["erm"]())


# ---- what is learned beside the model


@EVERY
def test_state_goes_into_a_freshly_prepared_objective(name):
    model, objective = trained(name)
    fresh = prepared(name, staged_classifier(seed=7), seed=8)
    if objective.state_dict():
        assert frozen_loss(model, fresh) != frozen_loss(model, objective)
    fresh.load_state_dict(copy.deepcopy(objective.state_dict()))
    for seed in range(50, 54):
        assert frozen_loss(model, fresh, seed) == frozen_loss(model, objective, seed)


@EVERY
def test_training_changes_what_is_learned_and_nothing_else_of_the_state(name):
    start = prepared(name, staged_classifier()).state_dict()
    _, objective = trained(name)
    moved = {key for key, value in objective.state_dict().items() if not torch.equal(value, start[key])}
    expected = set(objective.learned()) | ({"q"} if name == "group_dro" else set())
    if name == "cdann":
        assert "embedding.weight" in expected
    assert moved == expected
    assert objective.step is None  # between steps nothing is learned


@EVERY
def test_a_frozen_loss_changes_nothing(name):
    dropout = {"dropout": 0.5} if name in ("dann", "cdann") else {}
    model, objective = trained(name, **dropout)
    before, weights = state_of(objective), copy.deepcopy(model.state_dict())
    losses = []
    for seed in (0, 1):  # and nothing is drawn
        torch.manual_seed(seed)
        losses.append(frozen_loss(model, objective))
        objective(*outputs_of(model, objective, draw_batches(50))).backward()
    assert losses[0] == losses[1]
    assert_same_state(objective, before)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


@EVERY
def test_a_frozen_gradient_has_no_part_for_what_is_learned(name):
    model, objective = trained(name)
    weights = dict(model.named_parameters())
    gradient = task_gradient(network_of(model, objective), objective, weights, draw_batches(50))
    assert gradient.learned == {}
    assert all(part is not None for part in gradient.weights.values())


@EVERY
def test_a_step_that_fails_leaves_everything_as_it_was(name):
    model, objective = trained(name)
    objective.trained = 0  # the model's turn, where they take turns
    trainer = Trainer(model, objective, TrainConfig(steps=2, learning_rate=0.05))
    model.get_parameter("network.head.bias").data[0] = float("inf")
    before, weights = state_of(objective), copy.deepcopy(model.state_dict())
    with pytest.raises(DapError, match="step 1 of training: the loss is"):
        trainer.step(draw_batches(1))
    assert trainer.steps_done == 0
    assert objective.step is None
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    assert_same_state(objective, before)


# ---- what it needs


@EVERY
def test_a_plain_network_is_enough_or_what_is_missing_is_said(name):
    plain = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, CLASSES))
    sources = {domain: TensorDataset(*batch) for domain, batch in draw_batches().items()}
    run = partial(train, plain, sources, TrainConfig(steps=2, batch_size=4), objective=OBJECTIVES[name]())
    if OBJECTIVES[name].needs == "logits":
        assert len(run().losses) == 2
    else:
        with pytest.raises(DapError, match="give a dap.Classifier|wrap it in a dap.Classifier"):
            run()


def test_miro_needs_stages():
    with pytest.raises(DapError, match="exposes no stages"):
        prepared("miro", flat_classifier())


@pytest.mark.parametrize("name", KNOW_THEIR_DOMAINS)
@pytest.mark.parametrize("domains", [("art", "photo"), ("art", "photo", "clipart"), ("photo", "art", "sketch")])
def test_other_source_domains_are_refused(name, domains):
    model, objective = trained(name)
    batches = dict(zip(domains, draw_batches(50).values(), strict=False))
    before = state_of(objective)
    for step in (None, 1, 2):
        objective.step = step
        with pytest.raises(DapError, match="knows domains .*'sketch'|weights for domains .*'sketch'"):
            objective(*outputs_of(model, objective, batches))
    assert_same_state(objective, before)


@pytest.mark.parametrize("name", [*KNOW_THEIR_DOMAINS, "miro"])
def test_an_objective_that_was_not_prepared_says_what_to_do(name):
    model, objective = staged_classifier(), OBJECTIVES[name]()
    with pytest.raises(DapError, match="train with it first, or load the state"):
        objective(*outputs_of(model, objective, draw_batches()))


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in KNOW_THEIR_DOMAINS])
def test_other_objectives_take_any_domains(name):
    model, objective = trained(name)
    others = dict(zip(("x", "y"), draw_batches(50).values(), strict=False))
    assert torch.isfinite(objective(*outputs_of(model, objective, others)))


# ---- how it is made


@EVERY
def test_every_setting_has_a_default_and_stays_out_of_the_state(name):
    kind = OBJECTIVES[name]
    parameters = inspect.signature(kind).parameters
    assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters.values())
    assert issubclass(kind, Objective)
    assert kind().state_dict() == {}  # nothing is made before it is prepared
    assert kind.separable == (name in ("erm", "mixup", "mldg", "miro"))


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.separable])
def test_a_separable_loss_is_the_mean_of_its_halves(name):
    model, objective = trained(name)
    batches = draw_batches(50)
    halves = [{d: (x[part::2], y[part::2]) for d, (x, y) in batches.items()} for part in (0, 1)]
    whole, first, second = (objective(*outputs_of(model, objective, each)).item() for each in (batches, *halves))
    assert (first + second) / 2 == pytest.approx(whole, rel=1e-5)
    assert first != pytest.approx(second, rel=1e-2)
