"""How well a model classifies: the share of images it gets right, and its loss."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.batches import as_batch
from dap.errors import DapError
from dap.masking import frozen
from dap.outputs import Outputs
from dap.parallel import ALONE, Ranks
from dap.sources import Source, is_dataset, laid_out, take
from dap.user_models import check_runnable, running


class Score(NamedTuple):
    accuracy: float
    loss: float  # the mean cross-entropy
    images: int
    right: Tensor | None = None  # [n], bool: which images, of a dataset in its order


def accuracy(model: nn.Module, source: Source, batch_size: int = 256, ranks: Ranks = ALONE) -> float:
    """Accuracy over a whole dataset, or over an iterable of batches, in eval mode.

    >>> accuracy(nn.Identity(), [(torch.eye(3), torch.arange(3))])
    1.0
    """
    return score(model, source, batch_size, ranks).accuracy


@torch.no_grad()
def score(model: nn.Module, source: Source, batch_size: int = 256, ranks: Ranks = ALONE) -> Score:
    """Accuracy and loss over a whole dataset, or over an iterable of batches, in eval mode.

    Several ranks divide the batches among them, and all get the result.
    """
    check_runnable(model)
    if is_dataset(source):
        indices = [part for part in torch.arange(len(source)).split(batch_size) if len(part)][ranks.rank :: ranks.size]
        batches = ((part, *take(source, part)) for part in indices)
        hits = torch.zeros(len(source), dtype=torch.uint8)
    else:
        mine = (batch for place, batch in enumerate(source) if place % ranks.size == ranks.rank)
        batches = ((None, *as_batch(batch, "the iterable")) for batch in mine)
        hits = None
    first = next(model.parameters(), None)
    if hits is not None and first is not None:
        hits = hits.to(first.device)
    right = loss = seen = 0.0
    with frozen(model):
        for part, inputs, labels in batches:
            if first is not None:
                inputs, labels = inputs.to(first.device), labels.to(first.device)
            with running(model, inputs):
                logits = Outputs.of(model(laid_out(inputs))).logits.float()
            correct = logits.argmax(1) == labels
            right += int(correct.sum())
            if hits is not None and part is not None:
                hits[part.to(hits.device)] = correct.to(hits.dtype)
            loss += F.cross_entropy(logits, labels.long(), reduction="sum").item()
            seen += len(labels)
    right, loss, seen = ranks.totals(right, loss, seen)
    if seen == 0:
        raise DapError("accuracy needs at least one image")
    if hits is not None:
        ranks.sum_([hits])  # each has set its own
        hits = hits.bool().cpu()
    return Score(right / seen, loss / seen, int(seen), hits)
