"""Training on under masks: weights move, masks stay."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from conftest import make_batches, make_classifier, make_model, make_objective
from dap.config import SwadConfig, TrainConfig
from dap.criteria import magnitude
from dap.errors import DapError
from dap.masks import Masks
from dap.masks.allocation import per_layer
from dap.masks.attach import bake
from dap.objectives import OBJECTIVES, Irm
from dap.training import finetune, train

SOURCES = {domain: TensorDataset(*batch) for domain, batch in make_batches(size=16).items()}


def pruned(model: nn.Module) -> tuple[nn.Module, Masks]:
    masks = per_layer(magnitude(model), 0.6)
    return bake(model, masks), masks


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_cut_stays_zero_and_the_rest_moves(name):
    model = make_classifier()
    objective = make_objective(name, model, SOURCES)
    sparse, masks = pruned(model)
    before, learned = copy.deepcopy(sparse), copy.deepcopy(objective)
    config = TrainConfig(steps=6, learning_rate=1e-2, weight_decay=0.1, batch_size=6)
    finetune(sparse, masks, SOURCES, config, objective=objective)
    for key, mask in masks.items():
        weight, start = sparse.get_parameter(key), before.get_parameter(key)
        assert weight[~mask].eq(0).all()
        assert weight[mask].ne(start[mask]).float().mean() > 0.5
    assert same(objective, learned)  # the caller's


@pytest.mark.parametrize("swad", [None, SwadConfig(converge=1, patience=1)])
def test_selection_and_averaging_keep_the_zeros(swad):
    sparse, masks = pruned(make_model("convolutional"))
    config = TrainConfig(steps=7, learning_rate=1e-2, batch_size=6, check_every=2, swad=swad, freeze_norms=False)
    tuned = finetune(sparse, masks, SOURCES, config, validation=SOURCES)
    assert tuned.scores[0].step == 1
    assert all(sparse.get_parameter(key)[~mask].eq(0).all() for key, mask in masks.items())
    assert all(sparse.get_parameter(key)[mask].ne(0).all() for key, mask in masks.items())


def test_the_references_of_miro_stay_the_pretrained_networks():
    model = make_classifier()
    objective = make_objective("miro", model, SOURCES)
    sparse, masks = pruned(model)
    tuned = finetune(sparse, masks, SOURCES, TrainConfig(steps=2), objective=objective)
    assert same(tuned.objective.get_submodule("reference"), objective.get_submodule("reference"))


def test_an_unpruned_model_is_pruned_first_and_tied_weights_stay_tied():
    model = make_model("tied")
    masks = per_layer(magnitude(model), 0.6)
    finetune(model, masks, SOURCES, TrainConfig(steps=2, learning_rate=1e-2))
    assert model.get_parameter("first.weight")[~masks["first.weight"]].eq(0).all()
    assert model.get_submodule("second").weight is model.get_submodule("first").weight


def test_going_on_gives_the_same_bits_and_other_masks_are_refused(tmp_path):
    config = TrainConfig(steps=6, learning_rate=1e-2, batch_size=6)
    whole, masks = pruned(make_model("convolutional"))
    straight = finetune(whole, masks, SOURCES, config, movement=masks)

    def stop(stats):
        if stats.step == 3:
            raise OSError("the lamp went out")

    file = tmp_path / "state.safetensors"
    parts, _ = pruned(make_model("convolutional"))
    with pytest.raises(OSError, match="lamp"):
        finetune(parts, masks, SOURCES, config, movement=masks, checkpoint=file, on_step=stop)
    parts, _ = pruned(make_model("convolutional"))
    resumed = finetune(parts, masks, SOURCES, config, movement=masks, checkpoint=file)
    assert same(whole, parts)
    assert all(torch.equal(moved, resumed.movement[name]) for name, moved in straight.movement.items())
    others = per_layer(magnitude(parts), 0.8)
    with pytest.raises(DapError, match="belongs to a run with other masks"):
        finetune(parts, others, SOURCES, config, movement=masks, checkpoint=file)


def test_masks_of_another_model_are_refused():
    masks = per_layer(magnitude(make_model("tied")), 0.5)
    with pytest.raises(DapError, match="the masks do not fit the model"):
        finetune(make_model("convolutional"), masks, SOURCES, TrainConfig(steps=1))


def test_the_objectives_schedule_goes_on():
    """IRM's penalty has its final weight, also when fine-tuning is shorter than its annealing was."""
    model, seen = make_classifier(), []
    dense = train(model, SOURCES, TrainConfig(steps=4, batch_size=6), objective=Irm(anneal=3))
    assert dense.objective.trained == 4

    class Spy(Irm):
        def forward(self, outputs, labels):
            seen.append(self.step)
            return super().forward(outputs, labels)

    spy = Spy(anneal=3)
    spy.trained = dense.objective.trained
    tuned = finetune(model, None, SOURCES, TrainConfig(steps=2, batch_size=6), objective=spy)
    assert seen == [5, 6]
    assert (spy.trained, tuned.objective.trained) == (4, 6)


def test_masks_under_the_second_name_of_a_tied_weight():
    model = make_model("tied")
    first = per_layer(magnitude(model), 0.6)["first.weight"]
    finetune(model, Masks({"second.weight": first}), SOURCES, TrainConfig(steps=2, learning_rate=1e-2))
    assert model.get_parameter("first.weight")[~first].eq(0).all()


def test_what_cannot_be_trained_is_refused():
    half = make_model("tied").half()
    with pytest.raises(DapError, match="stem.weight is float16, too coarse for Adam to train"):
        finetune(half, None, SOURCES, TrainConfig(steps=1))
    model = make_model("tied")
    model.get_parameter("head.weight").requires_grad_(False)
    with pytest.raises(DapError, match="head.weight does not move: set requires_grad on it"):
        finetune(model, None, SOURCES, TrainConfig(steps=1), movement=["head.weight"])
