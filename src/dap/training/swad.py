"""SWAD (Cha et al., 2021): the average of the weights over the valley of the validation loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dap.config import SwadConfig
from dap.errors import DapError
from dap.runtime.checkpoints import under
from dap.runtime.reading import require, require_like, require_types

Weights = dict[str, Tensor]
_SAVED = {
    "walls": float | None,
    "start": int | None,
    "end": int | None,
    "over": bool,
    "counts": tuple[int, int],
    "recent": list[tuple[int, float]],
}


@dataclass
class Average:
    """The running mean of weights."""

    weights: Weights = field(default_factory=dict)
    count: int = 0

    def add(self, weights: Mapping[str, Tensor]) -> None:
        self.count += 1
        for name, weight in weights.items():
            new = weight.detach()
            if self.count == 1:
                self.weights[name] = new.clone()
            elif new.is_floating_point():
                self.weights[name].add_((new - self.weights[name]) / self.count)
            else:
                self.weights[name].copy_(new)


@dataclass
class Segment:
    """The average over the steps between two evaluations, and the validation loss at its end."""

    weights: Weights
    end: int  # its last step
    loss: float


class Swad:
    """Fed with the weights of every step and the loss of every evaluation; gives the average of the valley.

    The valley begins at a segment whose loss is the lowest of itself and the following ones (`converge` in all); its
    walls are the mean of those losses times (1 + tolerance). Segments just before, back to the last one above the
    walls, belong to it (patience − converge of them at most). It ends where none of `patience` segments is below the
    walls. Each segment counts once.
    """

    def __init__(self, config: SwadConfig):
        self.config = config.resolved()
        self.segment = Average()
        self.recent: list[Segment] = []  # not judged yet, or still needed to look back
        self.valley = Average()
        self.walls: float | None = None
        self.start: int | None = None  # steps of the valley: the end of its first and last segment
        self.end: int | None = None
        self.over = False

    def add(self, weights: Mapping[str, Tensor]) -> None:
        """After every step."""
        self.segment.add(weights)

    def close(self, step: int, loss: float) -> None:
        """After every evaluation."""
        if not math.isfinite(loss):
            raise DapError(f"the validation loss is {loss} at step {step}: lower the learning rate")
        self.recent.append(Segment(self.segment.weights, step, loss))
        self.segment = Average()
        if self.over:
            self.recent = self.recent[-1:]
        elif self.walls is None:
            self._begin()
        elif len(self.recent) == self.config.patience:
            self._judge()

    def _begin(self) -> None:
        converge, patience = self.config.converge, self.config.patience
        newest = [segment.loss for segment in self.recent[-converge:]]
        if len(newest) < converge or min(newest) < newest[0]:
            self.recent = self.recent[-(patience - 1) :]
            return
        # Rounding may put the mean of equal numbers below them, and the valley would be empty.
        self.walls = max(sum(newest) / converge, newest[0]) * (1 + self.config.tolerance)
        earlier = self.recent[:-converge]
        inside = next((i for i in reversed(range(len(earlier))) if earlier[i].loss > self.walls), -1) + 1
        for segment in earlier[inside:]:
            self._take(segment)
        self.recent = self.recent[-converge:]
        if len(self.recent) == patience:
            self._judge()

    def _judge(self) -> None:
        """Whether the oldest segment that waits belongs to the valley."""
        assert self.walls is not None
        if min(segment.loss for segment in self.recent) > self.walls:
            self.over = True
        else:
            self._take(self.recent.pop(0))

    def _take(self, segment: Segment) -> None:
        self.valley.add(segment.weights)
        self.start = self.start or segment.end
        self.end = segment.end

    def finish(self) -> Weights:
        """The average: what still waits is judged by what is there. Without a valley, the last segment."""
        if self.walls is None:
            self.end = self.recent[-1].end if self.recent else None
            return self.recent[-1].weights if self.recent else self.segment.weights
        while self.recent and not self.over:
            self._judge()
        return self.valley.weights

    # ---- state

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """Everything that resuming needs: tensors, and values that JSON can hold."""
        groups = {"segment": self.segment.weights, "valley": self.valley.weights}
        groups |= {f"recent.{place}": segment.weights for place, segment in enumerate(self.recent)}
        tensors = {f"{group}.{name}": tensor for group, weights in groups.items() for name, tensor in weights.items()}
        values = {name: getattr(self, name) for name in ("walls", "start", "end", "over")}
        values |= {"counts": [self.segment.count, self.valley.count]}
        values |= {"recent": [[segment.end, segment.loss] for segment in self.recent]}
        return tensors, values

    def load(
        self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], like: Mapping[str, Tensor] | None = None
    ) -> None:
        """Go on from a state. Averages must have the names and shapes of `like`, a state dict of the model."""

        def group(prefix: str) -> Weights:
            found = {name: tensor.clone() for name, tensor in under(tensors, prefix).items()}
            if found and like is not None:
                require_like(found, like)
            return found

        require_types(values, _SAVED, only=True)
        self.walls, self.start, self.end, self.over = (values[name] for name in ("walls", "start", "end", "over"))
        self.segment = Average(group("segment."), values["counts"][0])
        self.valley = Average(group("valley."), values["counts"][1])
        self.recent = [Segment(group(f"recent.{place}."), *pair) for place, pair in enumerate(values["recent"])]
        averages = {"segment": bool(self.segment.count), "valley": bool(self.valley.count)}
        filled = {"segment": bool(self.segment.weights), "valley": bool(self.valley.weights)}
        require(averages == filled and all(one.weights for one in self.recent), "an average has no weights")
