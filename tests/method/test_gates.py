import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from dap.errors import DapError
from dap.method.gates import ByShape, GateLayout, by_output_channel, pull, relax, relax_gradient, sparsity_loss, weigh


class Gate(torch.autograd.Function):
    """The closed forms under test, as autograd sees them."""

    @staticmethod
    def forward(ctx, effective, uniform, temperature):
        gate = relax(effective, uniform, temperature)
        ctx.save_for_backward(gate)
        ctx.temperature = temperature
        return gate

    @staticmethod
    def backward(ctx, gradient):
        return relax_gradient(gradient.clone(), *ctx.saved_tensors, ctx.temperature), None, None


@pytest.mark.parametrize("temperature", [0.2, 0.7, 2.0])
@pytest.mark.parametrize("logit", [-2.0, 0.0, 2.944])
def test_law_is_that_of_gumbel_softmax(logit, temperature):
    torch.manual_seed(0)
    count = 20_000
    ours = relax(torch.full((count,), logit), torch.rand(count), temperature)
    pairs = torch.stack([torch.zeros(count), torch.full((count,), logit)], dim=1)
    theirs = F.gumbel_softmax(pairs, tau=temperature)[:, 1]
    assert ks_2samp(ours.numpy(), theirs.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.2, 0.7, 2.0])
def test_gradient_is_that_of_autograd(temperature):
    torch.manual_seed(0)
    effective = torch.randn(50, dtype=torch.float64, requires_grad=True)
    uniform = torch.rand(50, dtype=torch.float64)
    assert torch.autograd.gradcheck(Gate.apply, (effective, uniform, temperature))


@given(st.lists(st.tuples(st.floats(-20, 20), st.floats(1e-6, 1 - 1e-6)), min_size=1, max_size=20), st.floats(0.1, 3))
def test_relax_is_the_formula(values, temperature):
    effective = torch.tensor([logit for logit, _ in values], dtype=torch.float64)
    uniform = torch.tensor([u for _, u in values], dtype=torch.float64)
    expected = [1 / (1 + math.exp(-(logit + math.log(u / (1 - u))) / temperature)) for logit, u in values]
    torch.testing.assert_close(
        relax(effective, uniform, temperature), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-300
    )


def test_the_ends_of_the_uniform_range_give_no_nan():
    effective = torch.tensor([-50.0, 0.0, 50.0])
    gate = relax(effective, torch.zeros(3), 0.2)
    assert gate.tolist() == [0, 0, 0]
    assert relax_gradient(torch.ones(3), gate, 0.2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("prices", [1, 9, "own"])
@pytest.mark.parametrize("target", [0.1, 0.9])
def test_sparsity_loss_and_its_gradient_are_those_of_autograd(target, prices):
    logits = torch.randn(50, dtype=torch.float64, requires_grad=True)
    fan = torch.rand(50, dtype=torch.float64) if prices == "own" else prices
    total = 50 * fan if isinstance(fan, int) else fan.sum().item()
    naive = ((logits.sigmoid() * fan).sum() / total - (1 - target)) ** 2
    naive.backward()

    keep = logits.detach().sigmoid()
    density = weigh(keep, fan)[0].item() / total
    value, derivative = sparsity_loss(density, 1 - target)
    gradient = torch.zeros_like(keep)
    pull(gradient, keep, fan, derivative / total)

    assert value == pytest.approx(naive.item(), rel=1e-12)
    assert sparsity_loss(1 - density, target)[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_on_a_channel_has_the_gradient_of_autograd(dtype):
    torch.manual_seed(0)
    weights = {"a": torch.randn(4, 3, 2, 2).to(dtype), "b": torch.randn(5, 4).to(dtype)}
    layout = GateLayout(weights, by_output_channel)
    assert (layout.gates, layout.total) == (9, 4 * 12 + 20)
    gates = torch.rand(9, requires_grad=True)
    masked = layout.masked_weights(gates)
    sum(((index + 2) * weight.float() ** 3).sum() for index, weight in enumerate(masked.values())).backward()

    with torch.no_grad():
        masked = {name: weight.requires_grad_() for name, weight in layout.masked_weights(gates).items()}
    sum(((index + 2) * weight.float() ** 3).sum() for index, weight in enumerate(masked.values())).backward()
    ours = torch.cat([part for _, part in layout.gate_gradients({name: w.grad for name, w in masked.items()})])
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours, gates.grad, rtol=tolerance, atol=tolerance)


def test_masks_at_a_sparsity_cut_whole_gates_of_any_shape():
    """A kernel of a convolution, but single weights of the last layer: fans of 4 and 1."""
    layout = GateLayout(
        {"a": torch.ones(3, 2, 2, 2), "b": torch.ones(5, 4)},
        ByShape(lambda shape: (*shape[:2], *(1 for _ in shape[2:]))),
    )
    assert (layout.gates, layout.total) == (26, 44)
    ranking = torch.randn(26, generator=torch.Generator().manual_seed(0))
    for sparsity in (0.25, 0.5, 0.75):
        masks = layout.cut(ranking, sparsity, allow_empty=False)
        kernels = masks["a"].flatten(2)
        assert (kernels.all(2) | ~kernels.any(2)).all()
        assert 44 - round(44 * sparsity) - 4 < masks.kept <= 44 - round(44 * sparsity)
        kept = torch.cat([kernels[:, :, 0].flatten(), masks["b"].flatten()])
        assert ranking[kept].min() > ranking[~kept].max()
        assert not masks["b"].all()  # nor whole rows of it alone
        assert any(0 < row.sum() < 4 for row in masks["b"])
    with pytest.raises(DapError, match="would not leave every layer a gate"):
        layout.cut(ranking, 0.9, allow_empty=False)
    assert layout.cut(ranking, 1.0, allow_empty=True).kept == 0


def test_pieces_cover_every_gate_once(monkeypatch):
    monkeypatch.setattr("dap.method.gates._CHUNK", 7)
    weights = {"a": torch.ones(3, 5), "b": torch.ones(2, 5), "c": torch.ones(4, 2)}
    layout = GateLayout(weights, by_output_channel)
    covered = [(at, fan) for piece, fan in layout.pieces for at in range(piece.start, piece.stop)]
    assert covered == [(at, 5 if at < 5 else 2) for at in range(9)]


def test_masked_weights_keep_the_memory_format():
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    layout = GateLayout({"weight": weight})
    masked = layout.masked_weights(torch.rand(layout.gates))["weight"]
    assert masked.is_contiguous(memory_format=torch.channels_last)
