"""The method on real photographs, paintings, cartoons and sketches with real pretrained weights."""

import pytest
import torch

import dap
from pacs import pacs, resnet


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return lambda pixels: pacs(pixels, cache=tmp_path_factory.mktemp("pacs"), at_most=400)


def test_steps_on_a_pretrained_resnet(shared, images):
    torch.manual_seed(0)
    model = resnet("resnet18", 7)
    sources = {domain: data for domain, data in images(64).items() if domain != "cartoon"}
    config = dap.PruneConfig(steps=4, f_update=2, batch_size=4)
    path = dap.learn_masks(model, sources, config)
    assert path.pruner.layout.total == 11_170_496
    assert [row["loss"] for row in path.history] == pytest.approx([2.0] * 4, abs=1.0)
    assert path.masks_at(0.8).kept == 11_170_496 - round(0.8 * 11_170_496)
    assert path.pruner.sensitivity is not None
    agree = (path.pruner.sensitivity < 0).float().mean()
    assert 0.1 < agree < 0.9  # domains agree on some weights and disagree on others
