import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dap
import dap.convolutions
from conftest import make_batches
from dap.config import TrainConfig
from dap.convolutions import fast_backward, weight_gradient
from dap.objectives import Erm
from dap.trainer import Trainer

CPU = torch.device("cpu")


def gradients(model: nn.Module, inputs: torch.Tensor, *, fast: bool) -> list[torch.Tensor]:
    """Of the inputs and of every parameter, of a loss that weighs all outputs differently."""
    inputs = inputs.detach().requires_grad_()
    outputs = model(inputs)
    slopes = torch.arange(outputs.numel(), dtype=outputs.dtype).sin().view_as(outputs)
    loss = (outputs * slopes).sum()
    with fast_backward(CPU if fast else torch.device("meta")):
        return list(torch.autograd.grad(loss, [inputs, *model.parameters()]))


@pytest.fixture
def calls(monkeypatch):
    found = []
    monkeypatch.setattr(dap.convolutions, "weight_gradient", lambda *args: found.append(1) or weight_gradient(*args))
    return found


@settings(max_examples=60, deadline=None)
@given(
    images=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 5), st.integers(6, 9)),
    size=st.tuples(st.integers(3, 5), st.integers(3, 5)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    bias=st.booleans(),
    memory=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_the_gradient_of_any_convolution_is_the_same(images, channels, size, kernel, stride, padding, bias, memory):
    torch.manual_seed(0)
    model = nn.Conv2d(channels[0], channels[1], kernel, stride, padding, bias=bias)
    inputs = torch.randn(images, channels[0], *size).contiguous(memory_format=memory)
    exact = gradients(model.double(), inputs.double(), fast=False)
    for ours, theirs in zip(gradients(model.float(), inputs, fast=True), exact, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape", "dtype", "taken"),
    [
        (nn.Conv2d(4, 8, 3, padding=1), (2, 4, 4, 4), torch.float32, True),
        (nn.Conv2d(4, 8, 3, padding=1), (3, 4, 4, 4), torch.float32, False),  # 48 positions of 8 channels
        (nn.Conv2d(4, 8, 3), (2, 4, 4, 4), torch.float64, False),
        (nn.Conv2d(4, 8, 3), (2, 4, 4, 4), torch.bfloat16, False),
        (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 4, 4), torch.float32, False),
        (nn.Conv2d(4, 8, 2, dilation=2), (2, 4, 4, 4), torch.float32, False),
        (nn.ConvTranspose2d(4, 8, 2), (1, 4, 2, 2), torch.float32, False),
        (nn.Conv1d(4, 8, 3), (2, 4, 4), torch.float32, False),
        (nn.Conv3d(4, 8, 2), (1, 4, 3, 3, 3), torch.float32, False),
    ],
)
def test_it_is_taken_from_a_matrix_product_only_where_that_is_exact_and_fast(model, shape, dtype, taken, calls):
    model, inputs = model.to(dtype), torch.randn(shape, dtype=dtype)
    ordinary, ours = gradients(model, inputs, fast=False), gradients(model, inputs, fast=True)
    assert bool(calls) is taken
    for one, other in zip(ours, ordinary, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert taken or torch.equal(one, other)


def test_frozen_weights_cost_nothing(calls):
    model, inputs = nn.Conv2d(4, 8, 3).requires_grad_(False), torch.randn(2, 4, 4, 4, requires_grad=True)
    loss = model(inputs).sum()
    with fast_backward(CPU):
        torch.autograd.grad(loss, inputs)
    assert not calls


def test_second_derivatives_are_those_of_autograd():
    torch.manual_seed(0)
    model, inputs = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 4, 4)

    def penalty(fast: bool) -> torch.Tensor:
        with fast_backward(CPU if fast else torch.device("meta")):
            slopes = torch.autograd.grad(model(inputs).pow(3).sum(), model.weight, create_graph=True)[0]
            return torch.autograd.grad(slopes.pow(2).sum(), model.weight)[0]

    torch.testing.assert_close(penalty(True), penalty(False), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["training", "mask learning"])
def test_training_and_mask_learning_take_it(kind, calls):
    model = nn.Sequential(nn.Conv2d(3, 32, 4, stride=4), nn.Flatten(), nn.Linear(128, 3))
    steps = {
        "training": lambda: Trainer(model, Erm(), TrainConfig(steps=1)).step(make_batches()),
        "mask learning": lambda: dap.Pruner(model, dap.PruneConfig(steps=10)).step(make_batches()),
    }
    steps[kind]()
    assert calls
