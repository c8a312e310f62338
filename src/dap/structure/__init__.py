"""Whole channels instead of single weights: which belong together, what they cost, and how they are removed."""

from dap.structure.channels import ChannelLayout, Channels, Place
from dap.structure.coupling import find_channels
from dap.structure.removal import remove_channels

__all__ = ["ChannelLayout", "Channels", "Place", "find_channels", "remove_channels"]
