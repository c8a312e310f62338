"""How well a model classifies: the share of images it gets right, and its loss."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dap.errors import DapError
from dap.masks.attach import frozen, looking_at
from dap.runtime.batches import as_batch, called, check_batch, check_labels
from dap.runtime.outputs import Outputs
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.sources import Source, check_held_out, is_dataset, laid_out, take
from dap.runtime.user_models import check_runnable, running


class Score(NamedTuple):
    accuracy: float
    loss: float  # the mean cross-entropy
    images: int
    right: Tensor | None = None  # [n], bool: which images, of a dataset in its order


def accuracy(model: nn.Module, source: Source, batch_size: int = 256, ranks: Ranks = ALONE, domain: str = "") -> float:
    """Accuracy over a whole dataset, or over an iterable of batches, in eval mode. Errors name the `domain`.

    >>> accuracy(nn.Identity(), [(torch.eye(3), torch.arange(3))])
    1.0
    """
    return score(model, source, batch_size, ranks, domain).accuracy


@torch.no_grad()
def score(model: nn.Module, source: Source, batch_size: int = 256, ranks: Ranks = ALONE, domain: str = "") -> Score:
    """Accuracy and loss over a whole dataset, or over an iterable of batches, in eval mode.

    Several ranks divide the batches among them, and all get the result.
    """
    check_runnable(model)
    if is_dataset(source):
        parts = torch.arange(len(source), device="cpu").split(batch_size)
        indices = [part for part in parts if len(part)][ranks.rank :: ranks.size]
        batches = ((part, *take(source, part)) for part in indices)
        hits = torch.zeros(len(source), dtype=torch.uint8, device="cpu")
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
            check_batch(domain, inputs, labels, mixed=False)
            with running(model, inputs):
                logits = Outputs.of(model(laid_out(inputs))).logits.float()
            check_labels(domain, labels, logits.shape[1])
            correct = logits.argmax(1) == labels
            right += int(correct.sum())
            if hits is not None and part is not None:
                hits[part.to(hits.device)] = correct.to(hits.dtype)
            loss += F.cross_entropy(logits, labels.long(), reduction="sum").item()
            seen += len(labels)
    right, loss, seen = ranks.totals(right, loss, seen)
    if seen == 0:
        raise DapError(f"accuracy on {called(domain)} needs at least one image: remove the domain or give it images")
    if hits is not None:
        ranks.sum_([hits])  # each has set its own
        hits = hits.bool().cpu()
    return Score(right / seen, loss / seen, int(seen), hits)


def check_validation(model: nn.Module, validation: Mapping[str, Source]) -> None:
    """Refuse held-out images on which `score` would fail. Those that are not in memory are checked when they are read.

    >>> check_validation(nn.Identity(), {"art": [(torch.eye(3), torch.tensor([0, 1, 5]))]})
    Traceback (most recent call last):
    dap.errors.DapError: domain 'art': label 5 is out of range, the model has 3 classes
    """
    check_held_out(validation)
    device = next((parameter.device for parameter in model.parameters()), None)
    for domain, source in validation.items():
        in_memory = [source.tensors[:2]] if isinstance(source, TensorDataset) else source
        if not isinstance(in_memory, list | tuple):
            continue
        batches = [as_batch(batch, f"domain {domain!r}") for batch in in_memory]
        for inputs, labels in batches:
            check_batch(domain, inputs, labels, mixed=False)
        one = laid_out(batches[0][0][:1].to(device))
        with looking_at(model), running(model, one):
            classes = Outputs.of(model(one)).logits.shape[1]
        for _, labels in batches:
            check_labels(domain, labels, classes)
