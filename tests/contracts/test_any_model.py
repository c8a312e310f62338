"""What the pruner promises for every kind of model."""

import copy
import math

import pytest
import torch

import dap
from conftest import MODELS, make_batches, make_model
from dap.method.gates import by_output_channel, by_weight

CONFIG = dap.PruneConfig(steps=12, target_sparsity=0.9, alpha=1.0, f_update=2)


def run(model, config=CONFIG, steps=6, **options):
    pruner = dap.Pruner(model, config, **options)
    stats = [pruner.step(make_batches(seed=step)) for step in range(steps)]
    return pruner, stats


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_the_model_comes_back_unchanged(kind, training):
    model = make_model(kind).train(training)
    next(iter(model.children())).train(not training)  # flags may differ from module to module
    state = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    needs = [parameter.requires_grad for parameter in model.parameters()]
    strides = [parameter.stride() for parameter in model.parameters()]
    run(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert [parameter.requires_grad for parameter in model.parameters()] == needs
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", MODELS)
def test_the_flags_of_the_model_do_not_matter(kind):
    assert run(make_model(kind).train())[0].masks(0.5) == run(make_model(kind).eval())[0].masks(0.5)


@pytest.mark.parametrize("kind", MODELS)
def test_exact_sparsity_and_a_usable_sparse_model(kind):
    model = make_model(kind)
    pruner, _ = run(model)
    total = pruner.layout.total
    for sparsity in (0, 0.123, 0.5, 0.8, 1):
        masks = pruner.masks(sparsity=sparsity, allow_empty=sparsity == 1)
        assert masks.kept == total - round(sparsity * total)
        sparse = dap.bake(model, masks).eval()
        zeros = sum(int((sparse.get_parameter(name)[~mask] == 0).sum()) for name, mask in masks.items())
        assert zeros == round(sparsity * total)
        assert torch.isfinite(sparse(make_batches()["domain 0"][0])).all()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("granularity", [by_weight, by_output_channel])
def test_no_layer_is_emptied_unless_asked(kind, granularity):
    config = dap.PruneConfig(steps=12, target_sparsity=0.9, average=0.5)
    pruner, _ = run(make_model(kind), config, granularity=granularity)
    head = pruner.layout.sites[-1]
    for logits in (pruner.effective, pruner.average):
        logits[head.start : head.stop] = -5 - torch.rand(head.stop - head.start)  # all below every other layer's
    for masks in (pruner.masks(), pruner.masks(raw=True), pruner.masks(0.5), pruner.sampled_masks(0)):
        assert masks.by_layer()[head.name] < 1
        assert dap.bake(pruner.masked.model, masks).get_parameter(head.name).any()
    best = pruner.average[head.start : head.stop].argmax()
    assert pruner.masks()[head.name].flatten().nonzero()[0] == best * head.fan
    assert pruner.layout.sparsity(pruner.average) == pytest.approx(pruner.masks().sparsity)
    for masks in (pruner.masks(allow_empty=True), pruner.masks(0.5, allow_empty=True)):
        assert masks.by_layer()[head.name] == 1
    with pytest.raises(dap.DapError, match=r"would not leave every layer .*: lower it, or pass allow_empty=True"):
        pruner.masks(1.0)
    assert pruner.masks(1.0, allow_empty=True).kept == 0


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("hard", [False, True])
def test_same_seed_same_bits(kind, hard):
    config = dap.PruneConfig(steps=12, target_sparsity=0.9, f_update=2, hard=hard)
    (first, a), (second, b) = run(make_model(kind), config), run(make_model(kind), config)
    assert a == b
    assert torch.equal(first.ranking(), second.ranking())
    other, _ = run(make_model(kind), dap.PruneConfig(steps=12, target_sparsity=0.9, f_update=2, hard=hard, seed=1))
    assert not torch.equal(first.ranking(), other.ranking())


@pytest.mark.parametrize("kind", MODELS)
def test_under_bf16_autocast(kind):
    with torch.autocast("cpu", torch.bfloat16):
        pruner, stats = run(make_model(kind))
    assert pruner.effective.dtype == torch.float32
    _, exact = run(make_model(kind))
    assert all(math.isfinite(s.loss) for s in stats)
    assert stats[0].loss != exact[0].loss  # it really ran in bf16
    assert stats[0].loss == pytest.approx(exact[0].loss, rel=0.05)


@pytest.mark.parametrize("kind", MODELS)
def test_gates_on_whole_channels_with_the_same_pruner(kind):
    model = make_model(kind)
    pruner, _ = run(model, granularity=by_output_channel)
    masks = pruner.masks(sparsity=0.5)
    assert abs(masks.sparsity - 0.5) < 0.25
    for mask in masks.values():
        rows = mask.flatten(1)
        assert torch.equal(rows.all(1), rows.any(1))


def test_channels_last_learns_the_same_masks():
    """The memory format is a matter of speed alone."""
    plain, _ = run(make_model("convolutional"))
    last, _ = run(make_model("channels_last"))
    torch.testing.assert_close(plain.ranking(), last.ranking(), rtol=1e-3, atol=1e-3)


def test_a_model_in_bfloat16():
    model = make_model("convolutional").bfloat16()
    pruner = dap.Pruner(model, CONFIG)
    for step in range(3):
        pruner.step({name: (x.bfloat16(), y) for name, (x, y) in make_batches(seed=step).items()})
    assert pruner.masks(0.5).sparsity == pytest.approx(0.5, abs=1e-3)
