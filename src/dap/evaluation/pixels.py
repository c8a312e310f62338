"""Images in pixel space, [0, 1], and models that take them: where perturbations are measured."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from dap.runtime.batches import as_batch
from dap.runtime.outputs import Outputs
from dap.runtime.sources import Batch, Source, is_dataset, laid_out, take


class InPixels(nn.Module):
    """A model with its normalisation inside: images [n, c, h, w] in [0, 1] give logits.

    >>> InPixels(nn.Flatten(), (0.5,), (0.5,))(torch.ones(1, 1, 1, 1)).item()
    1.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        first = next(model.parameters(), torch.empty(0, device="cpu"))
        self.model = model
        self.register_buffer("mean", torch.tensor(mean, device=first.device).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, device=first.device).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return Outputs.of(self.model(laid_out((pixels - self.mean) / self.std))).logits

    def pixels(self, normalised: Tensor) -> Tensor:
        """What `forward` makes such images from."""
        return (normalised * self.std + self.mean).clamp(0, 1)


class Joined:
    """Datasets one after the other, as batches of at most `images` images in all; it can be read again and again."""

    def __init__(self, parts: Sequence[Source], images: int | None = None, size: int = 64):
        self.parts, self.images, self.size = parts, images, size

    def __len__(self) -> int:
        """How many images."""
        count = sum(len(part) for part in self.parts)
        return count if self.images is None else min(self.images, count)

    def __iter__(self) -> Iterator[Batch]:
        left = len(self)
        for part in self.parts:
            count = min(left, len(part))
            if count:
                yield from batches(part, self.size, count)
            left -= count


def batches(source: Source, size: int, images: int | None = None) -> Iterator[Batch]:
    """The first `images`, in order: of a dataset in batches of `size`, of an iterable in its own."""
    if not is_dataset(source):
        left = math.inf if images is None else images
        for inputs, labels in (as_batch(batch, "the iterable") for batch in source):
            if left <= 0:
                return
            few = min(left, len(labels))
            yield (inputs, labels) if few == len(labels) else (inputs[: int(few)], labels[: int(few)])
            left -= few
        return
    count = len(source) if images is None else min(images, len(source))
    for indices in torch.arange(count, device="cpu").split(size):
        yield take(source, indices)
