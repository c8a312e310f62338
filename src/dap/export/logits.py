"""Any model as one that gives logits and nothing else, and whether a file gives the same."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.runtime.outputs import Outputs
from dap.runtime.user_models import check_exportable, check_shaped, copied, first_line, unwrapped

TOLERANCE = 1e-3  # of logits, whose rounding depends on the order of sums


class Logits(nn.Module):
    """A copy in float32 and eval mode: the user's own model is not changed."""

    def __init__(self, model: nn.Module):
        super().__init__()
        check_exportable(model)
        check_shaped(model.named_parameters())
        self.model = copied(unwrapped(model)).float()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return Outputs.of(self.model(images)).logits


@contextmanager
def exporting() -> Iterator[None]:
    """Inside, torch traces a model: silently, and if it cannot, the error is one line with the cause."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch prints whole graphs
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # of torch, about itself
            yield
    except Exception as error:
        raise _explained(error) from error
    finally:
        logging.disable(before)


def _explained(error: BaseException) -> DapError:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    if known := next((cause for cause in causes if isinstance(cause, DapError)), None):
        return known
    line = first_line(causes[-1])
    if any("DataDependent" in type(cause).__name__ for cause in causes):
        return DapError(
            f"the model cannot be exported, since its control flow depends on the values of its inputs ({line}): use "
            f"torch.where or torch.cond instead of if, while and .item()"
        )
    return DapError(f"the model cannot be exported ({line}): rewrite what torch.export does not follow")


@torch.no_grad()
def difference(run: Callable[[Tensor], Tensor], reference: nn.Module, images: Tensor, where: str) -> float:
    """The largest between the logits of a file, which `run` runs, alone and together, and those of `reference`.

    More than rounding is an error.
    """
    model = Logits(reference)
    expected = model(images.clone())  # copies, since a model may change its inputs in place
    try:
        together, alone = run(images.clone()), run(images[:1].clone())
    except Exception as error:  # of many types
        raise DapError(
            f"{where} the model does not run on batches of other sizes ({first_line(error)}): it was not written; "
            f"does it treat the batch size as a constant?"
        ) from error
    found = max(float((together - expected).abs().max()), float((alone - expected[:1]).abs().max()))
    if found <= TOLERANCE * max(1.0, float(expected.abs().max())):
        return found
    if not torch.equal(model(images.clone()), expected):
        raise DapError("two forward passes on the same images differ: remove what draws random numbers in eval mode")
    raise DapError(
        f"{where} the model differs by {found:.3g} from the run's: it was not written; does an image's result depend "
        f"on the rest of its batch, or on numbers taken out of tensors, as by .item()?"
    )
