import pytest
import torch
from torch import nn

from dap.errors import DapError
from dap.export.ladder import Ladder
from dap.masks import Masks
from dap.masks.attach import bake, every_weight
from export.ladders import IMAGES, MODEL, WEIGHTS, structured, unstructured


@pytest.mark.parametrize("share", [0.1, 0.4, 0.53, 0.8])
def test_a_mask_between_keeps_what_the_sparser_one_keeps_and_then_the_largest_of_the_denser(share):
    ladder = unstructured()
    masks = ladder.at(share).masks
    assert masks is not None
    assert masks.sparsity == pytest.approx(share, abs=1e-4)
    denser = {name: torch.ones(weight.shape).bool() for name, weight in WEIGHTS.items()}
    if share > 0.4:
        denser = ladder.made[0.4][1]
    sparser = ladder.made[0.4 if share <= 0.4 else 0.8][1]
    assert all(bool((masks[name] >= sparser[name]).all()) for name in masks)
    added = torch.cat([WEIGHTS[name][masks[name] & ~sparser[name]].abs() for name in masks])
    left = torch.cat([WEIGHTS[name][~masks[name] & denser[name]].abs() for name in masks])
    if share not in ladder.made:
        assert added.min() >= left.max()
    zeros = sum(int((weight == 0).sum()) for weight in every_weight(ladder.at(share).model).values())
    assert zeros == masks.total - masks.kept


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
def test_whole_channels_between_are_gone(share):
    ladder = structured()
    rung = ladder.at(share)
    channels = ladder.channels
    assert channels is not None
    assert rung.masks is not None
    kept = channels.kept(rung.masks)
    assert 1 - share - 0.1 < channels.flops(kept) <= 1 - share
    if share == 0.5:
        assert bool((kept >= channels.kept(ladder.made[0.7][1])).all())
    with torch.no_grad():
        torch.testing.assert_close(rung.model(IMAGES), rung.masked(IMAGES), atol=1e-4, rtol=1e-4)
    assert sum(w.numel() for w in rung.model.parameters()) < sum(w.numel() for w in MODEL.parameters())


def test_layers_of_other_sizes_are_cut_together():
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False))
    nn.init.uniform_(model[0].weight, 0.1, 0.2)
    nn.init.uniform_(model[1].weight, 5, 20)
    masks = Masks({"0.weight": torch.ones(4, 8).bool(), "1.weight": torch.zeros(8, 4).bool()})
    ladder = Ladder(model, {0.5: (bake(model, masks), masks)})
    between = ladder.at(0.25).masks
    assert between is not None
    assert between["0.weight"].all()
    assert torch.equal(between["1.weight"], model[1].weight > model[1].weight.median())


def test_the_first_is_the_one_that_cuts_the_least():
    ladder, told = unstructured(), []
    found = ladder.first(lambda rung: rung.share >= 0.3333, lambda *tried: told.append(tried))
    assert found.share == 0.335
    assert [tried[0] for tried in told] == list(range(1, len(told) + 1))
    assert told[-1][0] == told[-1][1] <= 9
    assert ladder.first(lambda rung: True).model is MODEL  # the dense one will do
    with pytest.raises(DapError, match=r"no model meets the wish, not even the one that cuts 80.0%"):
        ladder.first(lambda rung: False)


def test_nothing_is_between_where_weights_moved_and_beyond_the_sparsest():
    ladder = unstructured(fixed=True)
    assert ladder.shares == [0.0, 0.4, 0.8]
    assert ladder.at(0.5).share == 0.8
    with pytest.raises(DapError, match=r"a share of 90.0% is out of reach, the sparsest model cuts 80.0%"):
        ladder.at(0.9)
    alone = Ladder(nn.Linear(2, 2), {})
    assert alone.at(alone.highest).model is alone.dense


def test_a_model_between_keeps_something_in_every_layer():
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False))
    nn.init.uniform_(model[0].weight, 5, 20)
    nn.init.uniform_(model[1].weight, 0.1, 0.2)
    masks = Masks({"0.weight": torch.arange(32).view(4, 8) < 8, "1.weight": torch.zeros(8, 4).bool()})
    ladder = Ladder(model, {0.875: (bake(model, masks), masks)})
    between = ladder.at(0.6).masks
    assert between is not None
    assert between["1.weight"].sum() == 1
    assert between["1.weight"].flatten()[model[1].weight.argmax()]
