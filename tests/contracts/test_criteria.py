"""What every criterion promises."""

import copy

import pytest
import torch

from conftest import MODELS, make_model
from dap.criteria import CRITERIA
from dap.masking import maskable_weights


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kind", MODELS)
def test_a_score_for_every_weight_and_an_untouched_model(criterion, kind):
    model = make_model(kind)
    before = copy.deepcopy(model.state_dict())
    scores = CRITERIA[criterion](model)
    weights = maskable_weights(model)
    assert {name: score.shape for name, score in scores.items()} == {name: w.shape for name, w in weights.items()}
    assert all(torch.isfinite(score).all() for score in scores.values())
    assert all(torch.equal(score, CRITERIA[criterion](model)[name]) for name, score in scores.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("criterion", CRITERIA)
def test_patterns_choose_weights(criterion):
    assert set(CRITERIA[criterion](make_model("tied"), include=["*.weight"], exclude=["head.*"])) == {
        "stem.weight",
        "first.weight",
    }


def test_magnitude_is_the_absolute_value():
    model = make_model("tied")
    assert torch.equal(CRITERIA["magnitude"](model)["head.weight"], model.get_parameter("head.weight").abs())


def test_random_follows_its_seed():
    model = make_model("tied")
    assert not torch.equal(
        CRITERIA["random"](model, seed=0)["head.weight"], CRITERIA["random"](model, seed=1)["head.weight"]
    )
