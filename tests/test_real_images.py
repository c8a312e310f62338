"""The method on real photographs, paintings, cartoons and sketches with real pretrained weights."""

import pytest
import torch

import dap
from dap.allocation import global_masks
from dap.criteria import CRITERIA
from dap.data import split
from dap.evaluation import accuracy
from dap.training import train_dense
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


@pytest.mark.slow
def test_learned_masks_beat_magnitude(shared, tmp_path):
    torch.manual_seed(0)
    parts = {domain: split(data, index, 0) for index, (domain, data) in enumerate(pacs(64, tmp_path).items())}
    train = {domain: part for domain, (part, _) in parts.items() if domain != "cartoon"}
    held_out = {domain: part for domain, (_, part) in parts.items() if domain != "cartoon"}
    model = resnet("resnet18", 7)
    train_dense(model, train, steps=100, batch_size=16)
    config = dap.PruneConfig(steps=120, batch_size=16, target_sparsity=0.85)
    path = dap.learn_masks(model, train, config, milestones=(0.8,))

    def on_sources(net: torch.nn.Module) -> float:
        return sum(accuracy(net, data) for data in held_out.values()) / len(held_out)

    dense = on_sources(model)
    learned = on_sources(dap.bake(model, path.snapshots[0.8].masks))
    magnitude = on_sources(dap.bake(model, global_masks(CRITERIA["magnitude"](model), 0.8)))
    assert dense > 0.6
    assert learned > dense - 0.1
    assert learned > magnitude + 0.1
