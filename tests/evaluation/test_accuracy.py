import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from conftest import make_batches, make_model
from dap.errors import DapError
from dap.evaluation import accuracy

LOGITS = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [5.0, 4.0]])
LABELS = torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize("batch_size", [1, 3, 4, 100])
def test_by_hand(batch_size):
    assert accuracy(nn.Identity(), TensorDataset(LOGITS, LABELS), batch_size) == 0.75
    assert accuracy(nn.Identity(), [(LOGITS[:1], LABELS[:1]), (LOGITS[1:], LABELS[1:])]) == 0.75


def test_in_eval_mode_and_back():
    model = make_model("convolutional").train()
    data = TensorDataset(*make_batches(size=40)["domain 0"])
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert accuracy(model, data, 7) == accuracy(model, data, 40)  # neither dropout nor batch statistics
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_no_images():
    with pytest.raises(DapError, match="the images needs at least one image"):
        accuracy(nn.Identity(), [])
    with pytest.raises(DapError, match="domain 'photo' needs at least one image"):
        accuracy(nn.Identity(), [], domain="photo")
