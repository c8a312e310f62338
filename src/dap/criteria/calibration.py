"""What criteria look at, and what they give."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.masks.masks import Masks
from dap.objectives import Erm, Objective
from dap.objectives.objective import Loss
from dap.runtime.batches import Batches, check_batch
from dap.runtime.engine import Engine
from dap.runtime.sources import Source, batch_stream, to_device
from dap.structure.channels import Channels


class News(NamedTuple):
    """How far something that takes time has come."""

    stage: str
    step: int
    steps: int
    text: str = ""
    values: Mapping[str, Any] = {}  # for the log


class Scores(dict[str, Tensor]):
    """A score for every masked weight, by its name and in its shape; the higher, the sooner it is kept."""

    # Where the criterion trained a copy, that copy: the scores are those of its weights.
    model: nn.Module | None = None
    # Masks that the criterion cut on its way, by sparsity.
    passed: Mapping[float, Masks] = {}
    raw: "Scores | None" = None  # of mask learning that averages its logits: those without averaging
    # Where whole channels were scored: a score for each.
    by_channel: Tensor | None = None
    channels: Channels | None = None  # those that will be cut, where whole channels are


@dataclass(frozen=True)
class Calibration:
    """The source domains, what is asked of the model on them, and how much of them a criterion sees."""

    sources: Mapping[str, Source]
    objective: Objective | Loss | None = None  # None: ERM
    batches: int = 50  # per domain, for criteria that only look
    batch_size: int = 32
    seed: int = 0
    checkpoint: str | Path | None = None  # for criteria that train: where to save, and to go on from
    on_step: Callable[[News], None] | None = None
    engine: Engine = field(default_factory=Engine)
    sample: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)  # inputs that were seen

    def __post_init__(self) -> None:
        if not self.sources:
            raise DapError("there are no source domains: give at least one")
        for name in ("batches", "batch_size"):
            if getattr(self, name) < 1:
                raise DapError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def check_whole(self, interrupted: bool) -> None:
        """A criterion that was interrupted has no scores."""
        if interrupted:
            raise KeyboardInterrupt

    def inputs(self, device: torch.device) -> Tensor:
        """Some, to see how the model works: those that were seen, since a source may be readable only once."""
        if not self.sample:
            next(self.stream(device))
        return self.sample[0].to(device)

    def objective_on(self, device: torch.device) -> Objective:
        return Objective.of(self.objective or Erm()).to(device)

    def stream(self, device: torch.device) -> Iterator[Batches]:
        """A batch of every domain, `batches` times: the ones that training with this seed would see."""
        streams = {
            domain: batch_stream(domain, source, self.batch_size, self.seed, ranks=self.engine.ranks)
            for domain, source in self.sources.items()
        }
        for step in range(1, self.batches + 1):
            batches = {domain: next(stream) for domain, stream in streams.items()}
            for domain, (inputs, labels) in batches.items():
                check_batch(domain, inputs, labels)
            if not self.sample:
                self.sample.append(next(iter(batches.values()))[0])
            yield to_device(batches, device)
            if self.on_step is not None:
                self.on_step(News("scoring", step, self.batches))


class Criterion(Protocol):
    """Scores the maskable weights of a model, which stays as it is."""

    def __call__(
        self, model: nn.Module, data: Calibration, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()
    ) -> Scores: ...
