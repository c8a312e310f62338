import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dap.config import PruneConfig
from dap.errors import DapError
from dap.masks.attach import MaskedModel
from dap.method.gates import pull, weigh
from dap.method.gradients import domain_gradients, task_gradient
from dap.method.sensitivities.sign import sensitivity
from dap.method.step import Pruner
from dap.objectives import Erm
from dap.structure import ChannelLayout, find_channels
from structure.networks import make_network

MODEL, IMAGES = make_network("small_resnet")
CHANNELS = find_channels(MODEL, IMAGES)
LABELS = torch.arange(4)
BATCHES = {"a": (IMAGES, LABELS), "b": (IMAGES.flip(0), LABELS), "c": (IMAGES.flip(3), LABELS)}


@given(st.integers(0, 2**32 - 1), st.floats(0, 0.9), st.booleans())
def test_a_cut_takes_as_many_channels_as_it_needs_the_worst_first(seed, removed, uniform):
    scores = torch.rand(CHANNELS.total, generator=torch.Generator().manual_seed(seed))
    kept = CHANNELS.cut(scores, removed, uniform=uniform)
    assert CHANNELS.flops(kept) <= 1 - removed + 1e-12
    shares = []
    for group in CHANNELS.groups.values():
        mine, size = kept[group], group.stop - group.start
        assert mine.any()
        if not mine.all():
            assert scores[group][mine].min() >= scores[group][~mine].max()
        assert size < 64 or int(mine.sum()) % 8 == 0
        shares.append(int(mine.sum()) / size)
    if uniform:
        assert max(shares) - min(shares) <= 0.15
    else:  # not more than a block of channels too much
        assert CHANNELS.flops(kept) > 1 - removed - 8 * 2 * CHANNELS.prices(torch.ones(CHANNELS.total)).max()


def test_infinite_scores_keep_a_group_whole_and_what_is_out_of_reach_is_said():
    scores = torch.rand(CHANNELS.total)
    first = next(iter(CHANNELS.groups.values()))
    scores[first] = torch.inf
    assert CHANNELS.cut(scores, 0.5)[first].all()
    with pytest.raises(DapError, match=r"90% of the FLOPs cannot be cut: without what is kept whole, 0.0% can"):
        CHANNELS.cut(torch.full_like(scores, torch.inf), 0.9)
    with pytest.raises(DapError, match="scores hold NaN"):
        CHANNELS.cut(torch.full_like(scores, torch.nan), 0.5)
    with pytest.raises(DapError, match="share of FLOPs to cut is 1"):
        CHANNELS.cut(scores, 1)


def test_prices_are_the_derivative_of_the_expected_flops():
    keep = torch.rand(CHANNELS.total, dtype=torch.float64)
    prices, step = CHANNELS.prices(keep), 1e-6
    for channel in range(0, CHANNELS.total, 50):
        more = keep.clone()
        more[channel] += step
        assert (CHANNELS.flops(more) - CHANNELS.flops(keep)) / step == pytest.approx(float(prices[channel]), rel=1e-3)
    logits = torch.randn(CHANNELS.total)
    ((_, found),), rest = ChannelLayout(MODEL, CHANNELS).priced(logits)
    assert float(found @ logits.sigmoid()) + rest == pytest.approx(CHANNELS.flops(logits.sigmoid()), rel=1e-5)


def test_the_gradient_of_a_gate_is_that_of_everything_it_multiplies():
    layout, masked = ChannelLayout(MODEL, CHANNELS), MaskedModel(MODEL)
    gates = torch.rand(layout.gates).requires_grad_()
    outputs = masked(layout.masked_weights(gates), IMAGES)
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, LABELS), gates)
    found = task_gradient(masked, Erm(), layout.masked_weights(gates.detach()), {"a": (IMAGES, LABELS)})
    ((piece, gradient),) = layout.gate_gradients(found.weights)
    assert piece == slice(0, layout.gates)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)


def test_the_sensitivity_of_a_channel_is_the_agreement_of_its_gate():
    """Against the naive formula: a gradient of the gates for every domain, and the product of signs for every pair."""
    config = PruneConfig(steps=10, f_update=1, beta=0.0, target_sparsity=0.5)
    pruner = Pruner(MODEL, config, granularity=CHANNELS)
    before = pruner._sample(1, 0.3 * (0.1 / 0.3) ** 0.1, *pruner.layout.priced(pruner.effective))[0]
    weights = pruner.layout.masked_weights(before)
    _, parts = domain_gradients(pruner.network, Erm(), weights, BATCHES)
    signs = torch.stack([next(pruner.layout.gate_gradients(part))[1].sign() for part in parts])
    pruner.step(BATCHES)
    assert pruner.sensitivity is not None
    naive = -(signs[0] * signs[1] + signs[0] * signs[2] + signs[1] * signs[2]) / 3
    torch.testing.assert_close(pruner.sensitivity.float(), naive, atol=1e-3, rtol=0)
    assert torch.equal(sensitivity((signs > 0).sum(0), (signs < 0).sum(0), 3), naive)


def test_prices_weigh_gates_as_plain_sums_do():
    keep, prices, gradient = torch.rand(9), torch.rand(9), torch.rand(9)
    mass, slope = weigh(keep, prices)
    assert mass == pytest.approx(float((keep * prices).sum()))
    assert slope == pytest.approx(float((keep * (1 - keep) * prices).sum()))
    expected = gradient + 0.3 * prices * keep * (1 - keep)
    pull(gradient, keep, prices, 0.3)
    torch.testing.assert_close(gradient, expected)


def test_channels_are_learnt_towards_a_share_of_flops_and_resumed_exactly():
    config = PruneConfig(steps=12, target_sparsity=0.8, learning_rate=0.5)
    pruner = Pruner(MODEL, config, granularity=CHANNELS)
    stats = [pruner.step(BATCHES) for _ in range(12)]
    assert stats[-1].sparsity > 0.3 > stats[0].sparsity
    assert stats[-1].sparsity == pytest.approx(1 - CHANNELS.flops(pruner.ranking() > 0))
    masks = pruner.masks(0.5)
    assert CHANNELS.flops(CHANNELS.kept(masks)) <= 0.5
    other = Pruner(MODEL, config, granularity=CHANNELS)
    for _ in range(5):
        other.step(BATCHES)
    again = Pruner(MODEL, config, granularity=CHANNELS)
    again.load_state_dict(other.state_dict())
    for _ in range(7):
        again.step(BATCHES)
    assert torch.equal(again.effective, pruner.effective)


def test_no_group_is_emptied_unless_asked():
    pruner = Pruner(MODEL, PruneConfig(steps=5, average=0.5), granularity=CHANNELS)
    group = next(iter(CHANNELS.groups.values()))
    for logits in (pruner.effective, pruner.average):
        assert logits is not None
        logits[group] = -5 - torch.rand(group.stop - group.start)  # below all other channels
    for masks in (pruner.masks(), pruner.masks(0.6)):
        assert CHANNELS.kept(masks)[group].any()
    assert pruner.layout.sparsity(pruner.ranking()) == 1 - CHANNELS.flops(CHANNELS.kept(pruner.masks()))
    for masks in (pruner.masks(allow_empty=True), pruner.masks(0.6, allow_empty=True)):
        assert not CHANNELS.kept(masks)[group].any()
