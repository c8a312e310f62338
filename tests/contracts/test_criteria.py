"""What every criterion promises, with every allocation it works with."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils.data import TensorDataset

from conftest import MODELS, make_batches, make_model
from dap.cli import main
from dap.config import FinetuneConfig, PruneConfig, TrainConfig
from dap.criteria import CRITERIA, Calibration, Scores
from dap.errors import DapError
from dap.masks.allocation import ALLOCATIONS, keep_count, n_of_m
from dap.masks.attach import maskable_weights
from dap.runs.estimates import Costs, expect
from dap.specs import PruneSpec, TrainSpec, identity
from dap.specs.methods import METHODS

LEARN, TRAIN = PruneConfig(steps=4, target_sparsity=0.5), TrainConfig(steps=3, learning_rate=1e-3)
WITHOUT_CONVOLUTIONS = {"attention", "tied"}  # after the first, that is


def calibration(seed: int = 0) -> Calibration:
    sources = {domain: TensorDataset(*batch) for domain, batch in make_batches(size=16).items()}
    return Calibration(sources, batches=2, batch_size=6, seed=seed)


def scores_of(name: str, model: torch.nn.Module, data: Calibration | None = None, **options: object) -> Scores:
    method = METHODS[name]
    if method.learns or method.trains:
        options["config"] = LEARN if method.learns else TRAIN
    return partial(CRITERIA[name], **options)(model, data or calibration())


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("kind", MODELS)
def test_scores_and_masks_of_every_allocation(name, kind):
    model = make_model(kind)
    if name == "dss" and kind in WITHOUT_CONVOLUTIONS:
        with pytest.raises(DapError, match="DSS scores the convolutions after the first, and the model has none"):
            scores_of(name, model)
        return
    model.train()
    before, flags = copy.deepcopy(model.state_dict()), [parameter.requires_grad for parameter in model.parameters()]
    random_state = torch.get_rng_state()
    scores = scores_of(name, model)

    # The model and the world are as they were.
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)

    # A score for every weight, the same each time.
    weights = maskable_weights(model)
    assert {key: score.shape for key, score in scores.items()} == {key: weight.shape for key, weight in weights.items()}
    assert not any(score.isnan().any() or score.requires_grad for score in scores.values())
    again = scores_of(name, model)
    assert all(torch.equal(score, again[key]) for key, score in scores.items())

    by_channel = [key for key in ALLOCATIONS if "channels" in key]
    for allocation in by_channel if METHODS[name].by_channel else ALLOCATIONS:
        masks = ALLOCATIONS[allocation](scores, 0.3)
        masks.check(model)
        assert masks == ALLOCATIONS[allocation](again, 0.3)
        assert all(mask.any() for mask in masks.values())
        keep = keep_count(masks.total, 0.3)
        if allocation == "channels":
            whole = {key for key, score in scores.items() if score.isposinf().all()}
            for key in set(masks) - whole:
                assert int(masks[key].flatten(1).any(1).sum()) == keep_count(len(masks[key]), 0.3)
        elif allocation == "global_channels":
            largest = max(mask[0].numel() for mask in masks.values())
            assert keep - largest < masks.kept <= keep
        else:
            assert masks.kept == keep
    if not METHODS[name].by_channel:
        masks = n_of_m(2, 4)(scores)
        masks.check(model)
        assert all(mask.movedim(1, -1)[..., :4].sum(-1).le(2).all() for mask in masks.values())


@pytest.mark.parametrize("name", sorted(CRITERIA.keys() - {"dss"}))
def test_patterns_choose_weights(name):
    scores = scores_of(name, make_model("tied"), include=("*.weight",), exclude=("head.*",))
    assert set(scores) == {"stem.weight", "first.weight"}


@pytest.mark.parametrize("name", sorted(name for name, method in METHODS.items() if not method.trains))
def test_memory_formats_agree(name):
    plain, last = (scores_of(name, make_model(kind)) for kind in ("convolutional", "channels_last"))
    for key, score in plain.items():
        torch.testing.assert_close(score, last[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["random", "taylor", "wanda", "dap"])
def test_the_seed_is_the_datas(name):
    model = make_model("tied")
    first, second = (scores_of(name, model, calibration(seed))["head.weight"] for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("name", "method"), METHODS.items(), ids=METHODS)
def test_the_record_says_what_the_criterion_does(name, method):
    data = calibration()
    scores = scores_of(name, make_model("convolutional"), data)
    assert bool(data.sample) == method.looks
    assert (scores.model is not None) == method.trains
    assert not (method.learns and method.trains)
    if method.by_channel:
        assert all(torch.equal(score, score[:, :1].expand_as(score)) for score in scores.values() if score.dim() > 1)
        assert "channels" in method.allocation
    assert method.learns == (method.allocation == "path")
    assert method.alpha is None or method.learns


@pytest.mark.parametrize(("name", "method"), METHODS.items(), ids=METHODS)
def test_what_a_method_does_not_use_plays_no_part_in_the_id(name, method):
    spec = PruneSpec("run", name)
    others = {
        "batches": (replace(spec, batches=7), method.looks),
        "learning rate": (replace(spec, finetune=FinetuneConfig(learning_rate=0.3)), method.trains or method.finetuned),
        "α": (replace(spec, prune=PruneConfig(alpha=0.7)), method.learns and method.alpha is None),
    }
    for what, (other, counts) in others.items():
        assert (identity(other) != identity(spec)) == counts, what


@pytest.mark.parametrize(("name", "method"), METHODS.items(), ids=METHODS)
def test_it_is_in_the_help_in_estimates_and_in_reports(name, method, capsys):
    with pytest.raises(SystemExit):
        main(["prune", "--help"])
    shown = "".join(capsys.readouterr().out.split())  # lines are broken anywhere
    assert f"{name}({''.join(method.title.split())})" in shown
    dense = TrainSpec("digits", ("plain",))
    stage = "mask learning" if method.learns else name if method.trains else "scoring"
    costs = Costs({stage: 2.0}, 1.0, 0.01, 100, 50, 4, 32, 0.0, 0, 0, 100, 10, 0, 0)
    found = expect(PruneSpec(dense, name, prune=PruneConfig(steps=10), batches=10), costs)
    assert found.seconds[stage] == 20.0
    weights_move = method.trains or method.finetuned
    assert found.disk == len(method.sparsities(method.allocation)) * (10 + 100 * weights_move)
    titles = [other.called() for other in METHODS.values()]
    assert titles.count(method.called()) == 1
