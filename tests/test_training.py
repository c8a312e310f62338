import pytest
import torch
from torch.utils.data import TensorDataset

from conftest import make_batches, make_model
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.training import train_dense

SOURCES = {name: TensorDataset(*batch) for name, batch in make_batches(size=30).items()}


def trained(**options):
    model = make_model("convolutional")
    losses = []
    torch.manual_seed(0)  # dropout draws from the global generator
    train_dense(
        model,
        SOURCES,
        **{"steps": 60, "learning_rate": 1e-2, "on_step": lambda _, loss: losses.append(loss), **options},
    )
    return model, losses


def test_learns_and_is_left_in_eval_mode():
    model, losses = trained(steps=150)
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    before = sum(accuracy(make_model("convolutional"), data) for data in SOURCES.values())
    assert sum(accuracy(model, data) for data in SOURCES.values()) > before
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("freeze", [True, False])
def test_norms_are_frozen_on_request(freeze):
    model, _ = trained(steps=3, freeze_norms=freeze)
    statistics = make_model("convolutional").get_buffer("1.running_mean")
    assert torch.equal(model.get_buffer("1.running_mean"), statistics) == freeze


def test_same_seed_same_bits():
    first, second, other = trained(steps=5)[0], trained(steps=5)[0], trained(steps=5, seed=1)[0]
    weights = [model.get_parameter("0.weight") for model in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_loss_that_runs_away_is_named():
    with pytest.raises(DapError, match="at step .* of dense training: lower the learning rate"):
        trained(learning_rate=1e20)
