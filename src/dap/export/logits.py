"""Any model as one that gives logits and nothing else, and whether a file gives the same."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.outputs import Outputs

TOLERANCE = 1e-3  # of logits, whose rounding depends on the order of sums


class Logits(nn.Module):
    """A copy in float32 and eval mode: the user's own model is not changed."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = deepcopy(model).float()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return Outputs.of(self.model(images)).logits


@torch.no_grad()
def difference(run: Callable[[Tensor], Tensor], reference: nn.Module, images: Tensor, where: str) -> float:
    """The largest between the logits of a file, which `run` runs, alone and together, and those of `reference`.

    More than rounding is an error.
    """
    expected = Logits(reference)(images)
    found = max(
        float((run(images) - expected).abs().max()),
        float((run(images[:1]) - expected[:1]).abs().max()),
    )
    if not found <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise DapError(f"{where} the model differs by {found:.3g} from the run's: it was not written")
    return found
