import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dap.errors import DapError
from dap.masks import Masks
from dap.masks.attach import MaskedModel, bake
from dap.models import Classifier, ModelCard, save_classifier
from dap.structure import ChannelLayout, find_channels, remove_channels
from structure.networks import BACKBONES, make_network


def flops(model: nn.Module, images: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter.get_total_flops()


@torch.no_grad()
@pytest.mark.parametrize("name", BACKBONES)
def test_a_channel_that_is_gone_a_masked_one_and_a_gate_of_zero_are_the_same(name):
    model, images = make_network(name)
    model, images = model.double(), images.double()  # so that no more than the last digits differ
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    channels = find_channels(model, images)
    dense = model(images)
    kept = channels.cut(torch.rand(channels.total), 0.4)
    masks = channels.masks(kept)
    masked, small = bake(model, masks)(images), remove_channels(model, masks)
    torch.testing.assert_close(small(images), masked)
    assert (dense - masked).abs().max() > 1e-3
    layout, gated = ChannelLayout(model, channels), MaskedModel(model)
    torch.testing.assert_close(gated(layout.masked_weights(kept.double()), images), masked)
    assert torch.equal(gated(layout.masked_weights(torch.ones(channels.total, dtype=torch.float64)), images), dense)
    assert torch.equal(channels.kept(masks), kept)
    # What is left of the operations, counted by torch. It does not see the products inside of a fused attention.
    expected = flops(small, images) / flops(model, images)
    assert channels.flops(kept) == pytest.approx(expected, rel=0.03 if "vit" in name else 1e-9)
    assert 0.5 < channels.flops(kept) <= 0.6
    assert sum(weight.numel() for weight in small.parameters()) < sum(weight.numel() for weight in model.parameters())
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


def test_it_can_be_trained_and_ships_with_its_graph_alone(tmp_path):
    model, images = make_network("small_resnet")
    channels = find_channels(model, images)
    small = remove_channels(model, channels.masks(channels.cut(torch.rand(channels.total), 0.5))).train()
    small(images).sum().backward()
    assert all(weight.grad is not None for weight in small.parameters())
    again = remove_channels(model, channels.masks(torch.ones(channels.total)))
    assert [w.shape for w in again.parameters()] == [w.shape for w in model.parameters()]
    assert isinstance(small, Classifier)
    with pytest.raises(DapError, match="without some of its channels, cannot be rebuilt from a file: export it"):
        save_classifier(small, tmp_path / "small.safetensors", ModelCard(tuple("abcde"), 16))


def test_masks_of_single_weights_and_empty_layers_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    diagonal = Masks({"0.weight": torch.eye(2).bool()})
    with pytest.raises(DapError, match=r"the mask of 0.weight is not one of whole channels: prune with .* flops"):
        remove_channels(model, diagonal)
    with pytest.raises(DapError, match=r"nothing of 2.bias is kept"):
        remove_channels(model, Masks({"2.bias": torch.zeros(2).bool()}))
