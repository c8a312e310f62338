"""What a model gives for a batch, as objectives see it."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dap.errors import DapError


class Outputs(NamedTuple):
    """Logits (batch × classes) and, from models that expose them, pooled features and the features of each stage."""

    logits: Tensor
    features: Tensor | None = None
    stages: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, result: object) -> "Outputs":
        """Wrap what a model returned."""
        if isinstance(result, Outputs):
            return result
        if not isinstance(result, Tensor) or result.ndim != 2:
            found = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise DapError(f"the model returned {found}; wrap it so that it returns logits of shape (batch, classes)")
        return cls(result)

    def tensors(self) -> list[Tensor]:
        return [self.logits, *([] if self.features is None else [self.features]), *self.stages]

    def replaced(self, tensors: Sequence[Tensor]) -> "Outputs":
        """The same outputs with other tensors, in the order of `tensors()`."""
        logits, *rest = tensors
        features = None if self.features is None else rest.pop(0)
        return Outputs(logits, features, tuple(rest))

    def split(self, sizes: list[int]) -> list["Outputs"]:
        """The outputs of a joined batch, one for each of its parts."""
        parts = zip(*(tensor.split(sizes) for tensor in self.tensors()), strict=True)
        return [self.replaced(part) for part in parts]
