"""Several processes that share every step: which images are whose, and how the parts come together."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dap.errors import DapError


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that work on one run. Alone, every method is free.

    >>> Ranks(rank=1, size=2).share(6)
    slice(3, 6, None)
    """

    rank: int = 0
    size: int = 1

    def share(self, count: int) -> slice:
        """Which of the `count` images of a batch are ours: equal, neighbouring parts in the order of ranks."""
        if count % self.size:
            raise DapError(f"a batch of {count} does not divide among {self.size} processes: choose a multiple")
        part = count // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def gather(self, part: Tensor) -> Tensor:
        """The whole batch from the ranks' equal parts; gradients flow through our own part alone."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, part.detach().contiguous())
        parts[self.rank] = part
        return torch.cat(parts)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""
        if self.size == 1:
            return
        dense = [(tensor, tensor.contiguous()) for tensor in tensors]
        works = [dist.all_reduce(buffer, async_op=True) for _, buffer in dense]
        for (tensor, buffer), work in zip(dense, works, strict=True):
            if work is not None:
                work.wait()
            if buffer is not tensor:
                tensor.copy_(buffer)

    def mean_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over all ranks."""
        if self.size == 1:
            return
        tensors = list(tensors)
        self.sum_(tensors)
        for tensor in tensors:
            tensor.div_(self.size)

    def totals(self, *numbers: float) -> list[float]:
        """The sum of each number over all ranks."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        if dist.get_backend() == "nccl":
            tensor = tensor.to("cuda", torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def agree(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return self.totals(float(flag))[0] > 0

    def same(self, number: int) -> bool:
        """Whether all ranks have this number, below 2³²."""
        return len(set(self.totals(*(float(number) * (rank == self.rank) for rank in range(self.size))))) == 1

    def wait(self) -> None:
        """Until all ranks are here."""
        self.totals(0.0)


ALONE = Ranks()
