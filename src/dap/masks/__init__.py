"""Masks: what they are, how they attach to a module, and how scores become masks."""

from dap.masks.attach import MaskedModel, bake, maskable_weights
from dap.masks.masks import Masks

__all__ = ["MaskedModel", "Masks", "bake", "maskable_weights"]
