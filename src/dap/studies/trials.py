"""A random search over hyper-parameters, from DomainBed's ranges, selected on the sources."""

from dataclasses import dataclass, replace

import numpy as np

from dap.errors import DapError
from dap.runtime.seeding import derive_seed
from dap.specs.ranges import Choice, LogUniform, Range
from dap.specs.runs import TrainSpec

# Of every objective; batches of DomainNet are at most 32.
TRAINING: dict[str, Range] = {
    "learning_rate": LogUniform(-5, -3.5),
    "weight_decay": LogUniform(-6, -2),
    "batch_size": LogUniform(3, 5.5, base=2, whole=True),
}
DROPOUT = Choice((0.0, 0.1, 0.5))


@dataclass(frozen=True)
class Search:
    trials: int = 20
    seed: int = 0
    # Domains: those that are sources are left out one after the other, and the choice is by what trials do on them.
    leave_out: tuple[str, ...] = ()


def draw_trials(spec: TrainSpec, search: Search) -> tuple[TrainSpec, ...]:
    """The specification itself, then variants: a function of the search's seed and the objective."""
    from dap.objectives import OBJECTIVES

    if search.trials < 1:
        raise DapError(f"search.trials is {search.trials}; it must be at least 1")
    if spec.objective not in OBJECTIVES:
        raise DapError(f"there is no objective {spec.objective!r}; choose one of {', '.join(OBJECTIVES)}")
    return (spec, *(_trial(spec, search.seed, number) for number in range(1, search.trials)))


def _trial(spec: TrainSpec, seed: int, number: int) -> TrainSpec:
    from dap.objectives import OBJECTIVES

    rng = np.random.default_rng(derive_seed("search", seed, spec.objective, number))
    ranges = TRAINING | ({"batch_size": LogUniform(3, 5, base=2, whole=True)} if spec.suite == "DomainNet" else {})
    drawn = {name: found.draw(rng) for name, found in ranges.items()}
    dropout = DROPOUT.draw(rng)
    if spec.backbone == "small_resnet":  # it has none
        dropout = 0.0
    options = {name: found.draw(rng) for name, found in OBJECTIVES[spec.objective].search.items()}
    return replace(spec, train=replace(spec.train, **drawn), dropout=dropout, options={**spec.options, **options})
