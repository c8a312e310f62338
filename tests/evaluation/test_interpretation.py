import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches, make_model
from dap.errors import DapError
from dap.evaluation.activation_maps import NoMaps, activation_maps
from dap.evaluation.interpretation import (
    Learnt,
    against_magnitude,
    by_layer,
    chance_overlap,
    logit_histogram,
    rank_correlation,
    read_learnt,
)
from dap.masks import Masks
from dap.models import create_classifier


def test_what_is_read_is_what_was_learnt(tmp_path):
    data = {name: TensorDataset(*batch) for name, batch in make_batches(size=20).items()}
    model = make_model("convolutional")
    config = dap.PruneConfig(steps=10, target_sparsity=0.6, batch_size=4, f_update=2, average=0.5)
    path = dap.learn_masks(model, data, config, checkpoint=tmp_path / "state.safetensors")
    learnt = read_learnt(tmp_path / "state.safetensors")
    assert list(learnt.logits) == list(path.masks)
    flat = torch.cat([part.flatten() for part in learnt.logits.values()])
    assert torch.equal(flat, path.pruner.ranking())  # what masks are cut from
    assert not torch.equal(flat, path.pruner.ranking(raw=True))
    assert (flat <= 0).double().mean().item() == pytest.approx(path.history[-1]["sparsity"])
    rows = by_layer(model, path.masks, learnt)
    assert [row["layer"] for row in rows] == list(path.masks)
    assert {row["layer"]: row["sparsity"] for row in rows} == pytest.approx(path.masks.by_layer())
    found = logit_histogram(learnt.logits, bins=7)
    assert sum(found["counts"]) == path.masks.total
    assert found["boundary"] == pytest.approx((flat.abs() < 1).double().mean().item())
    with pytest.raises(DapError, match="only mask learning leaves logits"):
        read_learnt(tmp_path / "nothing")


def test_disagreement_with_magnitude_by_hand():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, -3.0, 2.0, 1.0]]))
    masks = Masks({"weight": torch.tensor([[True, False, True, False]])})  # magnitude keeps 4 and -3
    assert against_magnitude(model, masks) == {"small_but_kept": 0.5, "large_but_pruned": 0.5, "by_chance": 0.5}
    learnt = Learnt(
        {"weight": torch.tensor([[2.0, -2.0, 0.5, -9.0]])}, {"weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}
    )
    (row,) = by_layer(model, masks, learnt)
    assert (row["small_but_kept"], row["large_but_pruned"], row["boundary"]) == (1, 1, 0.25)
    assert row["sensitivity"] == 2.5
    assert row["sensitivity_and_magnitude"] == pytest.approx(-1.0)
    assert row["keep_probability"] == pytest.approx(torch.tensor([2.0, -2.0, 0.5, -9.0]).sigmoid().mean().item())


def test_matrices_that_include_has_added_have_rows(recwarn):
    """No warning says that they cannot be masked."""
    model = nn.LSTM(4, 3)
    masks = Masks({name: weight.detach() > 0 for name, weight in model.named_parameters() if weight.ndim > 1})
    assert {row["layer"]: row["sparsity"] for row in by_layer(model, masks)} == pytest.approx(masks.by_layer())
    assert against_magnitude(model, masks)["by_chance"] == pytest.approx(masks.sparsity)
    assert not recwarn.list


def test_rank_correlation_is_spearmans():
    one, other = torch.randint(9, (50,)).float(), torch.randn(50)
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one.numpy(), other.numpy()).statistic)
    assert rank_correlation(torch.ones(5), other[:5]) is None


def test_what_chance_gives():
    generator = torch.Generator().manual_seed(0)
    one, other = (Masks({"w": torch.rand(200, 200, generator=generator) < share}) for share in (0.3, 0.5))
    assert one.overlap(other) == pytest.approx(chance_overlap(one, other), abs=0.01)


def test_maps_show_where_the_evidence_is():
    """One channel sees red, one blue; class 0 is red."""
    convolution, head = nn.Conv2d(3, 2, 1, bias=False), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]).view(2, 3, 1, 1))
        head.weight.copy_(torch.eye(2))
    first = nn.Conv2d(3, 3, 1, bias=False)
    nn.init.dirac_(first.weight)
    model = nn.Sequential(first, convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    image = torch.zeros(1, 3, 8, 8)
    image[:, 0, :4, :4], image[:, 2, 4:, 4:] = 1, 0.5
    red, blue = activation_maps(model, image.repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    assert torch.equal(red, image[0, 0])
    assert torch.equal(blue, 2 * image[0, 2])
    assert torch.equal(activation_maps(model, image)[0], red)  # it predicts red
    assert not convolution._forward_hooks
    with pytest.raises(NoMaps, match="class activation maps are for networks of convolutions"):
        activation_maps(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), image)
    for name in ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        with pytest.raises(NoMaps):
            activation_maps(create_classifier(name, 3, None, pixels=224), torch.rand(1, 3, 224, 224))
    apart = nn.Sequential(first, convolution, nn.Flatten(2), nn.Unflatten(2, (2, 32)), nn.Flatten(), nn.Linear(128, 2))
    other = activation_maps(apart, image)  # [n, 2, 2, 32], as tokens of heads are, is no map: that of before is taken
    assert torch.equal(other, activation_maps(apart, image, layer="1"))
    with pytest.raises(DapError, match="no layer 'nowhere'"):
        activation_maps(model, image, layer="nowhere")
