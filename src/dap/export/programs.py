"""Programs of torch.export: a model with its graph, that PyTorch loads without its class."""

from pathlib import Path

import torch
from torch import Tensor, nn

from dap.export.logits import Logits, difference, exporting
from dap.runtime.files import replacing


def export_program(model: nn.Module, path: str | Path, images: Tensor, reference: nn.Module | None = None) -> float:
    """Write `model` for batches of any size, read it again, and run it on `images`, alone and together.

    Returns the largest difference from the logits of `reference`, by default the model itself. A program that differs
    by more than rounding is not written.
    """
    with torch.no_grad(), exporting():
        batch = {0: torch.export.Dim("batch")}
        program = torch.export.export(Logits(model), (torch.cat([images[:1]] * 2),), dynamic_shapes=(batch,))
        with replacing(path) as temporary:
            torch.export.save(program, temporary)
            again = torch.export.load(temporary).module()
            return difference(again, model if reference is None else reference, images, "as a program")
