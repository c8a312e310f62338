"""Programs of torch.export: a model with its graph, that PyTorch loads without its class."""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from dap.export.logits import Logits
from dap.files import replacing


def export_program(model: nn.Module, path: str | Path, images: Tensor) -> float:
    """Write `model` for batches of any size, read it again, and run it on `images`; the largest difference."""
    model = Logits(model).eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        expected = model(images)
        batch = {0: torch.export.Dim("batch")}
        program = torch.export.export(model, (images[:1].repeat(2, 1, 1, 1),), dynamic_shapes=(batch,))
        with replacing(path) as temporary:
            torch.export.save(program, temporary)
            again = torch.export.load(temporary).module()
            return float((again(images) - expected).abs().max())
