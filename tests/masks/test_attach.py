import warnings

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

from conftest import Attention, Tied, make_batches, make_model
from dap.errors import DapError
from dap.masks import Masks
from dap.masks.attach import MaskedModel, bake, maskable_weights


def test_weights_of_every_kind_are_found():
    names = set(maskable_weights(Attention()))
    assert names == {
        "patches.weight", "encoder.self_attn.in_proj_weight", "encoder.self_attn.out_proj.weight",
        "encoder.linear1.weight", "encoder.linear2.weight", "head.weight",
    }  # fmt: skip


def test_attention_with_separate_projections():
    names = set(maskable_weights(nn.MultiheadAttention(8, 2, kdim=4, vdim=4)))
    assert names == {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}


def test_tied_weights_appear_once_and_embeddings_never():
    assert set(maskable_weights(Tied())) == {"stem.weight", "first.weight", "head.weight"}
    model = nn.ModuleDict({"words": nn.Embedding(10, 4), "hidden": nn.Linear(4, 4), "out": nn.Linear(4, 10)})
    model["out"].weight = model["words"].weight
    with pytest.warns(UserWarning, match=r"only 22\.86% .* largest left out are words\.weight"):
        assert set(maskable_weights(model)) == {"hidden.weight"}


def test_include_and_exclude():
    assert set(maskable_weights(Attention(), include=["encoder.*"], exclude=["*linear*"])) == {
        "encoder.self_attn.in_proj_weight", "encoder.self_attn.out_proj.weight",
    }  # fmt: skip


def test_a_model_without_maskable_weights():
    with pytest.raises(DapError, match="no maskable weights"):
        maskable_weights(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()))
    with pytest.raises(DapError, match=r"no maskable weights matching include=\['enc\*'\], exclude=\['e\*'\]"):
        maskable_weights(Attention(), include=["enc*"], exclude=["e*"])


@pytest.mark.parametrize("options", [{"include": ["encoder.*", "x"]}, {"exclude": ["x"]}])
def test_a_pattern_without_a_weight_is_no_pattern(options):
    with pytest.raises(DapError, match="no maskable weight matches 'x': their names are such as patches.weight"):
        maskable_weights(Attention(), **options)


def test_weights_that_cannot_be_masked_are_named():
    with pytest.raises(DapError, match=r"0\.weight has no shape yet"):
        maskable_weights(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(DapError, match=r"0\.weight is computed from other tensors"):
        maskable_weights(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))))
    with pytest.raises(DapError, match=r"0\.weight is computed from other tensors"):
        maskable_weights(nn.Sequential(nn.utils.prune.identity(nn.Linear(3, 3), "weight")))
    half = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    assert list(maskable_weights(half, exclude=["0.*"])) == ["1.weight"]
    with warnings.catch_warnings(action="ignore"):  # torch has a word on it too
        empty = nn.Sequential(nn.Linear(0, 3))
    with pytest.raises(DapError, match=r"0\.weight is empty"):
        maskable_weights(empty)
    broken = nn.Linear(2, 2)
    broken.weight.data[0, 0] = float("nan")
    with pytest.raises(DapError, match="weight holds NaN"):
        maskable_weights(broken)


@pytest.mark.parametrize("kind", ["convolutional", "channels_last", "attention", "tied"])
def test_masked_and_baked_models_agree(kind):
    model = make_model(kind)
    masked = MaskedModel(model)
    torch.manual_seed(1)
    masks = Masks({name: torch.rand(weight.shape) > 0.5 for name, weight in masked.weights.items()})
    weights = {name: weight * masks[name] for name, weight in masked.weights.items()}
    images = make_batches()["domain 0"][0]
    with torch.no_grad():
        expected = masked(weights, images)
        sparse = bake(model, masks).eval()
        torch.testing.assert_close(sparse(images), expected)
        assert not torch.allclose(expected, model.eval()(images))
    assert type(sparse) is type(model)
    assert list(sparse.state_dict()) == list(model.state_dict())


def test_every_masked_weight_matters():
    """Attention reads its weights without calling a submodule: it must be masked all the same."""
    model = make_model("attention")
    masked = MaskedModel(model)
    images = make_batches()["domain 0"][0]
    whole = masked(masked.weights, images)
    for name, weight in masked.weights.items():
        assert not torch.allclose(masked({name: torch.zeros_like(weight)}, images), whole), name


def test_bake_writes_zeros_and_leaves_the_model():
    model = make_model("tied")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    masks = Masks({"first.weight": torch.zeros(16, 16).bool()})
    sparse = bake(model, masks)
    assert sparse.second.weight is sparse.first.weight  # pyright: ignore
    assert sparse.first.weight.abs().sum() == 0  # pyright: ignore
    assert not torch.signbit(sparse.first.weight).any()  # pyright: ignore
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_buffer_written_in_the_forward_pass_stays():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs):
            self.calls += 1
            return self.layer(inputs)

    model = Counter()
    masked = MaskedModel(model)
    masked(masked.weights, torch.ones(1, 2))
    assert model.calls == 0


def test_bake_refuses_masks_of_another_model():
    with pytest.raises(DapError, match="no weight 'first.weight'"):
        bake(make_model("attention"), Masks({"first.weight": torch.zeros(16, 16).bool()}))


def test_batch_statistics_in_eval_mode_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(DapError, match="1 normalises by the statistics of each batch"):
        MaskedModel(model)


def test_patterns_are_lists():
    with pytest.raises(DapError, match="lists of patterns"):
        maskable_weights(Attention(), include="head.*")
