"""Programs of torch.export: a model with its graph, that PyTorch loads without its class."""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from dap.export.logits import Logits, difference
from dap.files import replacing


def export_program(model: nn.Module, path: str | Path, images: Tensor, reference: nn.Module | None = None) -> float:
    """Write `model` for batches of any size, read it again, and run it on `images`, alone and together.

    Returns the largest difference from the logits of `reference`, by default the model itself. A program that differs
    by more than rounding is not written.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        batch = {0: torch.export.Dim("batch")}
        program = torch.export.export(Logits(model), (images[:1].repeat(2, 1, 1, 1),), dynamic_shapes=(batch,))
        with replacing(path) as temporary:
            torch.export.save(program, temporary)
            again = torch.export.load(temporary).module()
            return difference(again, reference or model, images, "as a program")
