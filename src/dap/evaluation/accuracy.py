"""The share of images that a model classifies correctly."""

import torch
from torch import nn

from dap.errors import DapError
from dap.masking import frozen
from dap.outputs import Outputs
from dap.sources import Source, is_dataset, take


@torch.no_grad()
def accuracy(model: nn.Module, source: Source, batch_size: int = 256) -> float:
    """Accuracy over a whole dataset, or over an iterable of batches, in eval mode.

    >>> accuracy(nn.Identity(), [(torch.eye(3), torch.arange(3))])
    1.0
    """
    if is_dataset(source):
        indices = torch.arange(len(source)).split(batch_size)
        batches = (take(source, part) for part in indices if len(part))
    else:
        batches = iter(source)
    first = next(model.parameters(), None)
    right = seen = 0
    with frozen(model):
        for inputs, labels in batches:
            if first is not None:
                inputs, labels = inputs.to(first.device), labels.to(first.device)
            right += int((Outputs.of(model(inputs)).logits.argmax(1) == labels).sum())
            seen += len(labels)
    if seen == 0:
        raise DapError("accuracy needs at least one image")
    return right / seen
