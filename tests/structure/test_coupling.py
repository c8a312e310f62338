import pytest
import torch
from torch import nn

from dap.errors import DapError
from dap.masks.attach import bake
from dap.models.torchvision_repair import repair_torchvision
from dap.structure import find_channels, remove_channels
from dap.structure.flops import count_flops
from structure.networks import make_network


def test_a_stage_of_a_residual_network_shares_its_channels():
    model, images = make_network("resnet18")
    channels = find_channels(model, images)
    places = {}
    for name, dim, indices in channels.places:
        for group, part in channels.groups.items():
            if set(indices.tolist()) & set(range(part.start, part.stop)):
                places.setdefault(group, set()).add((name.removeprefix("network."), dim))
    stages = [found for found in places.values() if ("layer2.0.bn2.weight", 0) in found]
    assert len(stages) == 1
    both = {("layer2.1.conv2.weight", 0), ("layer2.0.downsample.0.weight", 0), ("layer3.0.conv1.weight", 1)}
    assert both <= stages[0]
    gated = {place.name.removeprefix("network.") for place in channels.gates}
    assert {"layer2.0.bn2.weight", "layer2.0.bn2.bias", "bn1.weight"} <= gated
    assert not any("conv" in name or "fc" in name for name in gated)


def test_gates_sit_where_a_channel_leaves():
    model, images = make_network("mobilenetv3_small_050")
    gated = {place.name.removeprefix("network.") for place in find_channels(model, images).gates}
    assert {"blocks.1.0.bn2.weight", "blocks.1.0.bn3.bias", "conv_head.weight", "conv_head.bias"} <= gated
    assert not {name for name in gated if "bn1" in name and "blocks.1" in name}  # a depthwise layer and its norm follow
    assert not {name for name in gated if "conv_expand" in name}  # it only scales what comes from a norm
    model, images = make_network("vit_tiny_patch16_224")
    gated = {place.name for place in find_channels(model, images).gates}
    assert "network.blocks.0.mlp.fc1.weight" in gated
    assert "network.blocks.0.attn.qkv.bias" in gated
    assert not {name for name in gated if "proj" in name or "fc2" in name}


class Own(nn.Module):
    """A residual sum, a flattened map, a grouped convolution and a layer norm, beside a head that is used last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(24, 3)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Conv2d(8, 6, 3, padding=1)
        self.outer = nn.Conv2d(6, 8, 3, padding=1)
        self.wide = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.squeezed = nn.Conv2d(8, 12, 4)
        self.flat = nn.Linear(12, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, images):
        maps = self.first(images).relu()
        maps = maps + self.outer(self.inner(maps).relu())
        return self.head(self.norm(self.flat(self.squeezed(self.wide(maps)).relu().flatten(1))))


def test_ones_own_model_keeps_whole_what_cannot_be_removed_exactly():
    torch.manual_seed(0)
    model, images = Own().train(), torch.randn(2, 3, 4, 4)
    model.first.requires_grad_(False)
    model.inner.eval()
    flags = [module.training for module in model.modules()]
    needs = [parameter.requires_grad for parameter in model.parameters()]
    channels = find_channels(model, images)
    assert set(channels.groups) == {"inner.weight", "squeezed.weight"}
    assert [module.training for module in model.modules()] == flags
    assert [parameter.requires_grad for parameter in model.parameters()] == needs
    assert all(parameter.grad is None for parameter in model.parameters())
    masks = channels.masks(channels.cut(torch.rand(channels.total), 0.3))
    with torch.no_grad():
        torch.testing.assert_close(remove_channels(model, masks)(images), bake(model, masks)(images))


def test_patterns_leave_groups_out():
    model, images = Own(), torch.randn(2, 3, 4, 4)
    assert set(find_channels(model, images, exclude=("inner.*",)).groups) == {"squeezed.weight"}
    assert set(find_channels(model, images, include=("inner.*",)).groups) == {"inner.weight"}
    with pytest.raises(DapError, match="no channels that can be removed"):
        find_channels(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), images)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.layer(inputs).detach()


def test_a_model_that_cannot_be_traced_is_one_line():
    with pytest.raises(DapError, match="channels"):
        find_channels(model := Untraceable().train(), torch.randn(2, 4))
    assert all(module.training for module in model.modules())


class Windows(nn.Module):
    """Attention among the tokens of a part of the image, as in MobileViT: parts are folded into the batch."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 2, stride=2), nn.Linear(8, 3)
        repair_torchvision()
        from timm.layers import Attention

        self.attention = Attention(8, num_heads=2)

    def forward(self, images):
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        parts = tokens.reshape(len(images) * 4, -1, 8)
        return self.head(self.attention(parts).reshape(len(images), -1, 8).mean(1))


def test_attention_within_parts_of_an_image_costs_less():
    model, images = Windows().eval(), torch.randn(2, 3, 16, 16)
    channels = find_channels(model, images)
    assert 2 * sum(cost.multiplications for cost in channels.costs) == count_flops(model, images[:1])
    within = 2 * 4 * 16**2 * 8  # two products, four parts of 16 tokens, 8 channels
    assert within in [cost.multiplications for cost in channels.costs]
