from functools import partial

import pytest
import torch

import dap.method.gradients
from conftest import MODELS, make_batches, make_classifier, make_model, make_objective
from dap.errors import DapError
from dap.masks.attach import MaskedModel
from dap.method.gradients import domain_gradients, forward, task_gradient
from dap.objectives import OBJECTIVES
from dap.runtime.outputs import asking


def check_parts(network, objective, weights, batches):
    loss, whole, learned = task_gradient(network, objective, weights, batches)
    same, parts = domain_gradients(network, objective, weights, batches)
    parts = list(parts)
    assert same == pytest.approx(loss, rel=1e-5)
    assert len(parts) == len(batches)
    assert learned == {}
    for name, gradient in whole.items():
        assert gradient is not None
        assert gradient.abs().max() > 0
        torch.testing.assert_close(sum(part[name] for part in parts), gradient, rtol=1e-4, atol=1e-6)  # pyright: ignore


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("joint", [True, False])
def test_the_domains_parts_add_up_to_the_ordinary_gradient(kind, joint, monkeypatch):
    monkeypatch.setattr(dap.method.gradients, "_JOINT", 2**20 if joint else 0)
    masked = MaskedModel(make_model(kind))
    check_parts(masked, OBJECTIVES["erm"](), masked.weights, make_batches(domains=4))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_domains_parts_add_up_under_every_objective(name):
    model, batches = make_classifier(), make_batches(domains=4)
    objective, masked = make_objective(name, model, batches), MaskedModel(model)
    network = partial(masked, **asking(model, objective.needs))
    check_parts(network, objective, {name: weight * 0.9 for name, weight in masked.weights.items()}, batches)


def test_a_domains_part_is_its_own_risk_over_the_number_of_domains():
    masked, batches = MaskedModel(make_model("convolutional")), make_batches(domains=3)
    _, parts = domain_gradients(masked, OBJECTIVES["erm"](), masked.weights, batches)
    for (domain, batch), part in zip(batches.items(), parts, strict=True):
        alone = task_gradient(masked, OBJECTIVES["erm"](), masked.weights, {domain: batch}).weights
        for name, gradient in part.items():
            assert gradient is not None
            torch.testing.assert_close(gradient * 3, alone[name], rtol=1e-4, atol=1e-6)


def test_a_weight_that_takes_no_part_has_no_gradient():
    class Idle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = torch.nn.Linear(192, 3), torch.nn.Linear(192, 3)

        def forward(self, images):
            return self.used(images.flatten(1))

    model = Idle()
    masked = MaskedModel(model)
    gradients = task_gradient(masked, OBJECTIVES["erm"](), masked.weights, make_batches()).weights
    assert gradients["idle.weight"] is None


def test_images_of_different_sizes_run_apart():
    masked = MaskedModel(make_model("convolutional"))
    batches = make_batches(domains=2)
    batches["domain 1"] = (torch.randn(6, 3, 12, 12), batches["domain 1"][1])
    outputs, _ = forward(partial(masked, masked.weights), OBJECTIVES["erm"](), batches, joint=True)
    assert [output.logits.shape for output in outputs.values()] == [(6, 3), (6, 3)]


def broken(change):
    batches = make_batches()
    inputs, labels = batches["domain 1"]
    batches["domain 1"] = change(inputs.clone(), labels.clone())
    return batches


def with_value(tensor, value):
    tensor.view(-1)[0] = value
    return tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:0], y[:0]), "'domain 1' gave an empty batch"),
        (lambda x, y: (x, with_value(y, 3)), "'domain 1': label 3 is out of range, the model has 3 classes"),
        (lambda x, y: (x, with_value(y, -1)), "'domain 1': label -1 is out of range"),
        (lambda x, y: (with_value(x, float("nan")), y), "'domain 1': the inputs hold NaN"),
        (lambda x, y: (with_value(x, float("inf")), y), "'domain 1': the inputs hold NaN or infinity"),
        (lambda x, y: (x, y.float()), "'domain 1': 6 inputs need as many whole-number labels"),
        (lambda x, y: (x, y > 0), "'domain 1': 6 inputs need as many whole-number labels"),
        (lambda x, y: (x, y[:5]), "'domain 1': 6 inputs need as many whole-number labels"),
    ],
)
@pytest.mark.parametrize("step", [1, 2])  # an ordinary one, one that updates the sensitivity
def test_bad_batches_are_named_and_change_nothing(change, message, step):
    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=5, f_update=2))
    for _ in range(step - 1):
        pruner.step(make_batches())
    before = pruner.state_dict()
    with pytest.raises(DapError, match=message):
        pruner.step(broken(change))
    after = pruner.state_dict()
    assert all(torch.equal(tensor, after["tensors"][name]) for name, tensor in before.pop("tensors").items())
    del after["tensors"]
    assert before == after


def test_labels_of_any_whole_number_type():
    for dtype in (torch.int32, torch.uint8):
        batches = {name: (x, y.to(dtype)) for name, (x, y) in make_batches().items()}
        assert dap.Pruner(make_model("tied"), dap.PruneConfig(steps=2)).step(batches).step == 1


@pytest.mark.parametrize("f_update", [1, 2])
def test_outputs_that_depend_on_no_weight(f_update):
    class Detached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(192, 3)

        def forward(self, images):
            return self.layer(images.flatten(1)).detach()

    with pytest.raises(DapError, match="no output depends on the weights"):
        dap.Pruner(Detached(), dap.PruneConfig(steps=2, f_update=f_update)).step(make_batches())


def test_a_loss_that_is_not_finite():
    def objective(outputs, labels):
        return sum(output.logits.sum() for output in outputs.values()) * float("nan")

    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=5), objective=objective)
    with pytest.raises(DapError, match="the loss is nan"):
        pruner.step(make_batches())
    assert pruner.steps_done == 0


def test_a_gradient_that_is_not_finite():
    def objective(outputs, labels):  # its value is 0, its derivative infinite
        return sum((output.logits.sum() * 0).sqrt() for output in outputs.values())

    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=5), objective=objective)
    with pytest.raises(DapError, match="the gradient is NaN or infinite at step 1"):
        pruner.step(make_batches())
    assert pruner.steps_done == 0
    assert pruner.coefficient.state is None


def test_a_model_that_does_not_give_logits():
    class Features(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 3, 1)

        def forward(self, images):
            return self.layer(images)

    with pytest.raises(DapError, match="returned a tensor of shape .* wrap it so that it returns logits"):
        dap.Pruner(Features(), dap.PruneConfig(steps=2)).step(make_batches())
