"""Networks whose channels tracing gets wrong, or cannot be gated: they stay whole, and what is cut is exact."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dap.errors import DapError
from dap.masks.attach import bake
from dap.structure import find_channels, remove_channels
from dap.structure.flops import count_flops

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two groups of channels: those of `first` go through `between`, those of `last` are like any."""

    def __init__(self, between, width=8):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(width, 8, 3, padding=1)
        self.head = nn.Linear(8, 3)
        self.between = between

    def forward(self, images):
        maps = self.between(images, self.first(images))
        return self.head(self.last(maps).relu().mean((2, 3)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.one, self.other = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
        self.other.weight = self.one.weight
        self.wide, self.head = nn.Conv2d(8, 12, 1), nn.Linear(12, 3)

    def forward(self, images):
        maps = self.other(self.one(self.stem(images)).relu()).relu()
        return self.head(self.wide(maps).relu().mean((2, 3)))


NETS = {
    "concatenated with the input": lambda: Net(lambda images, maps: torch.cat([images, maps], 1), 11),
    "softmax over channels": lambda: Net(lambda images, maps: maps.softmax(1)),
    "a mean over channels": lambda: Net(lambda images, maps: maps * maps.mean(1, keepdim=True)),
    "a sigmoid": lambda: Net(lambda images, maps: maps.sigmoid()),
    "something added": lambda: Net(lambda images, maps: maps + 1),
    "padded channels": lambda: Net(lambda images, maps: F.pad(maps, (0, 0, 0, 0, 2, 2)), 12),
    "a fixed shape": lambda: Net(lambda images, maps: maps.view(-1, 8, 64).view(-1, 8, 8, 8)),
    "tied weights": Tied,
}


@pytest.mark.parametrize("name", NETS)
def test_what_cannot_be_removed_stays_and_what_can_is_gone(name):
    torch.manual_seed(0)
    model = NETS[name]().eval()
    channels = find_channels(model, IMAGES)
    assert set(channels.groups) == ({"wide.weight"} if name == "tied weights" else {"last.weight"})
    masks = channels.masks(channels.cut(torch.rand(channels.total), 0.03))
    with torch.no_grad():
        torch.testing.assert_close(remove_channels(model, masks)(IMAGES), bake(model, masks)(IMAGES))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, images):
        return self.head(self.layer(images.flatten(1).view(len(images), -1, 8)).mean(1))


def test_attention_that_cannot_be_cut_counts():
    torch.manual_seed(0)
    model = Encoder().eval()
    channels = find_channels(model, IMAGES)
    assert 2 * sum(cost.multiplications for cost in channels.costs) == count_flops(model, IMAGES[:1])
    with pytest.raises(DapError, match="cannot be cut"):
        channels.cut(torch.rand(channels.total), 0.9)
    masks = channels.masks(channels.cut(torch.rand(channels.total), 0.1))
    small = remove_channels(model, masks)
    left = count_flops(small, IMAGES[:1]) / count_flops(model, IMAGES[:1])
    assert left == pytest.approx(channels.flops(channels.kept(masks)))
