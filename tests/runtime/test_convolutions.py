from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import dap
import dap.runtime.convolutions
from conftest import make_batches
from dap.config import TrainConfig
from dap.objectives import Erm
from dap.runtime.convolutions import fast_backward, weight_gradient
from dap.training.step import Trainer


@pytest.fixture
def calls(monkeypatch):
    """Small layers will do, and those that are taken are counted."""
    found = []
    monkeypatch.setattr(dap.runtime.convolutions, "_MANY", 1)
    monkeypatch.setattr(
        dap.runtime.convolutions, "weight_gradient", lambda *args: found.append(1) or weight_gradient(*args)
    )
    return found


def gradients(model: nn.Module, inputs: torch.Tensor, *, fast: bool) -> list[torch.Tensor]:
    """Of the inputs and of every parameter, of a loss that weighs all outputs differently."""
    inputs = inputs.detach().requires_grad_()
    outputs = model(inputs)
    slopes = torch.arange(outputs.numel(), dtype=outputs.dtype).sin().view_as(outputs)
    loss = (outputs * slopes).sum()
    with fast_backward(model.parameters()) if fast else nullcontext():
        return list(torch.autograd.grad(loss, [inputs, *model.parameters()]))


@given(
    images=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    size=st.tuples(st.integers(3, 5), st.integers(3, 5)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    memory=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_the_gradient_of_any_convolution(images, channels, size, kernel, stride, padding, memory):
    torch.manual_seed(0)
    inputs = torch.randn(images, channels[0], *size).contiguous(memory_format=memory)
    weight = torch.randn(channels[1], channels[0], *kernel, requires_grad=True)
    outputs = F.conv2d(inputs, weight, stride=stride, padding=padding)
    slopes = torch.randn_like(outputs)
    (exact,) = torch.autograd.grad(outputs, weight, slopes)
    ours = weight_gradient(slopes, inputs, weight.detach(), stride, padding)
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)


class Bare(nn.Module):
    """A convolution whose options are lists of one, which nn.Conv2d does not give."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, 3, 3))

    def forward(self, images):
        return F.conv2d(images, self.weight, stride=[2], padding=[1])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("model", "shape", "dtype", "taken"),
    [
        (nn.Conv2d(4, 8, 3, padding=1), (2, 4, 4, 4), torch.float32, True),
        (nn.Conv2d(4, 8, 3, padding="same", bias=False), (2, 4, 4, 4), torch.float32, True),
        (nn.Conv2d(4, 8, 3, padding=1), (3, 4, 4, 4), torch.float32, False),  # 48 positions of 8 channels
        (nn.Conv2d(4, 8, 3), (2, 4, 4, 4), torch.float64, False),
        (nn.Conv2d(4, 8, 3), (2, 4, 4, 4), torch.bfloat16, False),
        (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 4, 4), torch.float32, False),
        (nn.Conv2d(4, 8, 2, dilation=2), (2, 4, 4, 4), torch.float32, False),
        (nn.ConvTranspose2d(4, 8, 2), (1, 4, 2, 2), torch.float32, False),
        (nn.Conv1d(4, 8, 3), (2, 4, 4), torch.float32, False),
        (nn.Conv3d(4, 8, 2), (1, 4, 3, 3, 3), torch.float32, False),
        (Bare(), (2, 4, 4, 4), torch.float32, False),
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


def test_a_small_network_is_left_alone():
    assert isinstance(fast_backward(nn.Conv2d(64, 64, 3).parameters()), nullcontext)
    assert not isinstance(fast_backward(nn.Conv2d(256, 256, 3).parameters()), nullcontext)
    assert isinstance(fast_backward(nn.Linear(2048, 2048).parameters()), nullcontext)


def test_frozen_weights_cost_nothing(calls):
    model, inputs = nn.Conv2d(4, 8, 3).requires_grad_(False), torch.randn(2, 4, 4, 4, requires_grad=True)
    loss = model(inputs).sum()
    with fast_backward(model.parameters()):
        torch.autograd.grad(loss, inputs)
    assert not calls


def test_second_derivatives_are_those_of_autograd(calls):
    torch.manual_seed(0)
    model, inputs = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 4, 4)

    def penalty(fast: bool) -> torch.Tensor:
        with fast_backward(model.parameters()) if fast else nullcontext():
            slopes = torch.autograd.grad(model(inputs).pow(3).sum(), model.weight, create_graph=True)[0]
            return torch.autograd.grad(slopes.pow(2).sum(), model.weight)[0]

    torch.testing.assert_close(penalty(True), penalty(False), rtol=1e-4, atol=1e-3)
    assert calls


@pytest.mark.parametrize("kind", ["training", "mask learning"])
def test_training_and_mask_learning_take_it(kind, calls):
    model = nn.Sequential(nn.Conv2d(3, 32, 4, stride=4), nn.Flatten(), nn.Linear(128, 3))
    steps = {
        "training": lambda: Trainer(model, Erm(), TrainConfig(steps=1)).step(make_batches()),
        "mask learning": lambda: dap.Pruner(model, dap.PruneConfig(steps=10)).step(make_batches()),
    }
    steps[kind]()
    assert calls
