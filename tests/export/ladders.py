"""Ladders of a small network: of single weights, and of whole channels."""

import torch

from dap.export.ladder import Ladder
from dap.masks.allocation import global_masks
from dap.masks.attach import bake, every_weight
from dap.structure import find_channels
from structure.networks import make_network

MODEL, IMAGES = make_network("small_resnet")
WEIGHTS = every_weight(MODEL)


def unstructured(fixed: bool = False) -> Ladder:
    torch.manual_seed(0)
    ranks = {name: torch.rand(weight.shape) for name, weight in WEIGHTS.items()}
    other = {name: torch.rand(weight.shape) for name, weight in WEIGHTS.items()}  # rankings differ on the way
    masks = {0.4: global_masks(ranks, 0.4), 0.8: global_masks(other, 0.8)}
    return Ladder(MODEL, {share: (bake(MODEL, found), found) for share, found in masks.items()}, fixed=fixed)


def structured() -> Ladder:
    channels = find_channels(MODEL, IMAGES)
    torch.manual_seed(0)
    masks = {share: channels.masks(channels.cut(torch.rand(channels.total), share)) for share in (0.3, 0.7)}
    return Ladder(MODEL, {share: (bake(MODEL, found), found) for share, found in masks.items()}, channels)
