"""What a model gives for a batch, as objectives see it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from dap.errors import DapError


class Outputs(NamedTuple):
    """Logits (batch × classes) and, from models that expose them, pooled features and the features of each stage."""

    logits: Tensor
    features: Tensor | None = None
    stages: tuple[Tensor, ...] = ()
    reference: tuple[Tensor, ...] = ()  # what the objective itself saw in the batch: constants, MIRO's stages

    @classmethod
    def of(cls, result: object) -> "Outputs":
        """Wrap what a model returned."""
        logits = result.logits if isinstance(result, Outputs) else result
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            found = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise DapError(f"the model returned {found}; wrap it so that it returns logits of shape (batch, classes)")
        return result if isinstance(result, Outputs) else cls(logits)

    def tensors(self) -> list[Tensor]:
        """Those that depend on the model."""
        return [self.logits, *([] if self.features is None else [self.features]), *self.stages]

    def replaced(self, tensors: Sequence[Tensor]) -> "Outputs":
        """The same outputs with other tensors, in the order of `tensors()`."""
        logits, *rest = tensors
        features = None if self.features is None else rest.pop(0)
        return Outputs(logits, features, tuple(rest), self.reference)

    def split(self, sizes: list[int]) -> list["Outputs"]:
        """The outputs of a joined batch, one for each of its parts."""
        parts = zip(*(tensor.split(sizes) for tensor in self.tensors()), strict=True)
        return [self.replaced(part) for part in parts]

    def only(self, needs: str) -> "Outputs":
        """Without what an objective does not look at, which would otherwise be kept, and sent from rank to rank."""
        if needs == "logits":
            return self._replace(features=None, stages=())
        return self._replace(stages=()) if needs == "features" else self

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Outputs":
        """With every tensor changed, the constants too."""
        changed = self.replaced([change(tensor) for tensor in self.tensors()])
        return changed._replace(reference=tuple(map(change, self.reference)))


def asking(model: object, needs: str) -> dict[str, Any]:
    """The options with which `model` is called to give what an objective `needs`: a Classifier gives all on request."""
    plain = getattr(model, "_orig_mod", model)  # inside torch.compile's wrapper
    return {"full": True} if needs != "logits" and getattr(plain, "gives_features", False) else {}
