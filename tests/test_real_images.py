"""The method on real photographs, paintings, cartoons and sketches with real pretrained weights."""

import pytest
import torch

import dap
from dap.data import split
from pacs import pacs, resnet18


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("pacs")


def test_steps_on_a_pretrained_resnet(shared):
    torch.manual_seed(0)
    model = resnet18(7)
    few = {name: images.with_listed(images.listed[::20]) for name, images in pacs(64, cache=False).items()}
    sources = {name: images.augmented() for name, images in few.items() if name != "cartoon"}
    config = dap.PruneConfig(steps=4, f_update=2, batch_size=4)
    path = dap.learn_masks(model, sources, config, objective=dap.objectives.Coral())
    assert path.pruner.layout.total == 11_170_496
    assert all(1 < row["loss"] < 8 for row in path.history)
    assert path.masks_at(0.8).kept == 11_170_496 - round(0.8 * 11_170_496)
    assert path.pruner.sensitivity is not None
    agree = (path.pruner.sensitivity < 0).float().mean()
    assert 0.1 < agree < 0.9  # domains agree on some weights and disagree on others


@pytest.mark.slow
def test_erm_learns_real_images(shared, cache):
    parts = {name: split(images, index, 0) for index, (name, images) in enumerate(pacs(64, cache).items())}
    del parts["cartoon"]
    torch.manual_seed(0)
    dense = dap.train(
        resnet18(7),
        {name: train.augmented() for name, (train, _) in parts.items()},
        dap.TrainConfig(steps=300, batch_size=16, check_every=100),
        validation={name: held_out for name, (_, held_out) in parts.items()},
    )
    assert dense.scores[0].mean_accuracy < 0.5
    assert dense.scores[-1].mean_accuracy > 0.7
