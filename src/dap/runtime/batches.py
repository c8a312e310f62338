"""What a batch of a domain has to be."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_convert

from dap.errors import DapError

Batches = Mapping[str, tuple[Tensor, Tensor]]  # by domain: inputs, labels


def as_batch(found: Any, origin: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels, the first two of what a source gives; anything after them is left out."""
    if not isinstance(found, tuple | list) or len(found) < 2:
        shown = f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, tuple | list) else "")
        raise DapError(f"{origin} gave {shown}: give (inputs, labels), with a collate function if need be")
    inputs: Any = default_convert(found[0])
    labels: Any = default_convert(found[1])
    for name, value in {"inputs": inputs, "labels": labels}.items():
        if not isinstance(value, Tensor):
            remedy = "wrap the model in one that takes a single tensor" if name == "inputs" else "give whole numbers"
            raise DapError(f"{origin} gave {name} as a {type(value).__name__}, not as one tensor: {remedy}")
    return inputs, labels


def check_batch(domain: str, inputs: Tensor, labels: Tensor, mixed: bool = True) -> None:
    """`mixed` says whether labels may be probabilities. A domain without a name is ""."""
    if len(inputs) == 0:
        raise DapError(f"{called(domain)} gave an empty batch: remove the domain or give it images")
    whole = labels.ndim == 1 and not labels.is_floating_point() and labels.dtype != torch.bool
    shares = mixed and labels.ndim == 2 and labels.is_floating_point()  # probabilities, of mixed images
    if len(labels) != len(inputs) or not (whole or shares):
        raise DapError(
            f"{called(domain)}: {len(inputs)} inputs need as many whole-number labels, "
            f"not {tuple(labels.shape)} of {labels.dtype}"
        )
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        raise DapError(f"{called(domain)}: the inputs hold NaN or infinity")


def check_labels(domain: str, labels: Tensor, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DapError(f"{called(domain)}: label {wrong} is out of range, the model has {classes} classes")


def called(domain: str) -> str:
    return f"domain {domain!r}" if domain else "the images"
