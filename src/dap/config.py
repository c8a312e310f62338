"""Everything a user sets for dense training and mask learning. Imports no torch: reading options is instant."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from dap.errors import DapError

UNSET: Any = None  # the preset decides


def _paper_preset(steps: int | None) -> dict[str, Any]:
    """The paper's appendix, which needs its 100,000 steps."""
    return {
        "steps": 100_000,
        "target_sparsity": 0.999,
        "learning_rate": 0.002,
        "temperature": (2.0, 0.3),
        "alpha": 1.0,
        "beta": 0.92,
        "f_start": 0,
        "f_update": 30,
        "average": 0.0,
        "start": 1.0,
        "curve": 1.0,
        "batch_size": 32,
    }


def _paced_preset(steps: int | None) -> dict[str, Any]:
    """Any budget: windows stay the same share of the run. docs/pacing.md has the measurements."""
    steps = steps or 500
    return {
        "steps": steps,
        "target_sparsity": 0.9,  # a run that goes further gives its masks up to here less time
        "learning_rate": 0.05 * (500 / steps) ** 0.5,  # at 100,000 steps this is the paper's 0.0035
        "temperature": (0.7, 0.2),
        # Of small batches the sign agreement is mostly noise: it takes many updates, and weight, to be felt.
        "alpha": 5.0,
        "beta": 0.98,
        "f_start": 0,
        "f_update": max(1, steps // 250),
        "average": max(0.0, 1 - 25 / steps),  # over a twenty-fifth of the run
        "start": 1.5,
        "curve": 2.0,
        "batch_size": 32,
    }


# What a field takes when it is left UNSET, by `coefficient`.
PRESETS = {"paper": _paper_preset, "paced": _paced_preset}


def _of_channels(preset: dict[str, Any]) -> dict[str, Any]:
    """For whole channels, of which there are few: each must be decided, against the noise of its own gate.

    Found on the digits' source validation; their sparsity is a share of FLOPs, and networks of a quarter are small.
    """
    changes = {
        "target_sparsity": 0.75,
        "learning_rate": 4 * preset["learning_rate"],
        "temperature": (0.3, 0.1),
        "alpha": 1.0,
        "beta": 0.92,
        "f_update": max(1, preset["steps"] // 100),
        "start": 1.0,
        "curve": 1.0,
    }
    return preset | changes


# The paper's values per suite (its appendix on hyper-parameters).
PAPER: dict[str, dict[str, Any]] = {
    "PACS": {"alpha": 2.0, "learning_rate": 0.002, "f_start": 10_000, "f_update": 30, "batch_size": 32},
    "VLCS": {"alpha": 0.5, "learning_rate": 0.0035, "f_start": 10_000, "f_update": 1_000, "batch_size": 32},
    "OfficeHome": {"alpha": 1.0, "learning_rate": 0.0035, "f_start": 0, "f_update": 500, "batch_size": 32},
    "TerraIncognita": {"alpha": 0.5, "learning_rate": 0.002, "f_start": 0, "f_update": 1_000, "batch_size": 32},
    "DomainNet": {"alpha": 0.5, "learning_rate": 0.0035, "f_start": 10_000, "f_update": 1_000, "batch_size": 16},
}


@dataclass(frozen=True)
class PaperSchedule:
    """The paper's adaptive coefficient: its letters in comments."""

    base: float = 3.0  # λ_base
    acceleration: float = 6.0  # a
    exponent: float = 1.2  # ρ
    ratio: float = 0.1  # r
    ratio_range: tuple[float, float] = (0.01, 1.0)  # r_min, r_max
    smoothing: float = 0.92  # η
    range: tuple[float, float] = (0.5, 50.0)


@dataclass(frozen=True)
class PacedSchedule:
    """Ours: the sparsity follows a path that is set by the number of steps."""

    share: float = 0.9  # of the steps, after which the path has reached the target
    # The path is 1 − (1 − x^start)^curve of the way at a share x of its steps: both 1 make it straight.
    start: float = UNSET  # above 1, slow at first, while logits that began equal are told apart
    curve: float = UNSET  # above 1, slow near the target, where weights are dear
    tolerance: float = 0.02  # a deviation from the path that weighs as much as the mean task gradient
    smoothing: float = 0.9  # of the mean task gradient


@dataclass(frozen=True)
class PruneConfig:
    """Options of mask learning. A field left UNSET takes the value of its preset, named by `coefficient`.

    >>> PruneConfig(steps=2000, target_sparsity=0.9).resolved().learning_rate
    0.025
    """

    coefficient: Literal["paced", "paper"] = "paced"
    steps: int = UNSET  # T
    target_sparsity: float = UNSET  # s
    alpha: float = UNSET  # α, strength of the domain sensitivity; 0 learns domain-agnostic masks
    sensitivity: str = "sign"  # how disagreement between domains is measured; docs/sensitivities.md
    learning_rate: float = UNSET
    temperature: tuple[float, float] = UNSET  # τ₀ → τ₁
    p_init: float = 0.95
    f_start: int = UNSET  # first step that may update the sensitivity
    f_update: int = UNSET  # steps between updates of the sensitivity
    beta: float = UNSET  # β, smoothing of the sensitivity
    average: float = UNSET  # smoothing of the logits that masks are cut from; 0: the paper's raw logits
    hard: bool = False  # hard forward pass, straight-through backward pass
    clip_value: float = 6.0
    clip_norm: float = 4.0
    adam_betas: tuple[float, float] = (0.9, 0.999)
    # A logit's gradient is about 1e-9 at ten million weights: torch's default of 1e-8 would freeze most logits.
    adam_eps: float = 1e-12
    paper: PaperSchedule = PaperSchedule()
    paced: PacedSchedule = PacedSchedule()
    stop_at: float | None = None  # stop at the first mask of at least this sparsity
    include: tuple[str, ...] = ()  # patterns of weight names; empty: every weight that can be masked
    exclude: tuple[str, ...] = ()
    batch_size: int = UNSET  # per domain, where batches are drawn from datasets: 32, the paper's for DomainNet 16
    seed: int = 0

    @classmethod
    def for_suite(cls, suite: str, **changes: Any) -> Self:
        """The paper's configuration for one of its five suites.

        >>> PruneConfig.for_suite("PACS").alpha
        2.0
        """
        if suite not in PAPER:
            raise DapError(f"the paper has no configuration for suite {suite!r}; it has {', '.join(PAPER)}")
        return cls(coefficient="paper", **{**PAPER[suite], **changes})

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> Self:
        """From plain values, as a file holds them. An unknown option is an error that names the known ones."""
        schedules = {"paper": PaperSchedule, "paced": PacedSchedule}
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name in schedules and isinstance(value, dict):
                value = schedules[name](**_tuples(schedules[name], value))
            values[name] = value
        return cls(**_tuples(cls, values))

    def resolved(self, channels: bool = False, suite: str | None = None) -> Self:
        """With the preset's values in place of UNSET, those for whole channels, or the paper's for `suite`; checked."""
        if self.coefficient not in PRESETS:
            raise DapError(f"coefficient is {self.coefficient!r}; choose one of {', '.join(PRESETS)}")
        values = {name: tuple(v) if isinstance(v := getattr(self, name), list) else v for name in _names(type(self))}
        preset = PRESETS[self.coefficient](self.steps)
        if self.coefficient == "paper":
            preset |= PAPER.get(suite or "", {})
        elif channels:
            preset = _of_channels(preset)
        values = {name: preset.get(name) if value is None else value for name, value in values.items()}
        unset = [name for name in ("start", "curve") if getattr(self.paced, name) is UNSET]
        values["paced"] = replace(self.paced, **{name: preset[name] for name in unset})
        config = replace(self, **values)
        config._check()
        return config

    def _check(self) -> None:
        for name in ("steps", "f_update", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise DapError(f"{name} is {value}; it must be a whole number of at least 1")
        _check_seed(self.seed)
        for name in ("target_sparsity", "p_init", "stop_at"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise DapError(f"{name} is {value}; it is a share between 0 and 1, both excluded")
        for name in ("beta", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise DapError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        for name in ("learning_rate", "clip_value", "clip_norm", "adam_eps"):
            if not getattr(self, name) > 0:
                raise DapError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not isinstance(self.f_start, int) or self.f_start < 0:
            raise DapError(f"f_start is {self.f_start}; it must be a whole number of at least 0")
        for name in ("share", "tolerance", "start", "curve"):
            if not getattr(self.paced, name) > 0:
                raise DapError(f"paced.{name} is {getattr(self.paced, name)}; it must be above 0")
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):
                raise DapError(f"{name} is a list of patterns, not one string: ({getattr(self, name)!r},)")
        if not self.alpha >= 0:
            raise DapError(f"alpha is {self.alpha}; it must be at least 0")
        if len(self.temperature) != 2 or not all(value > 0 for value in self.temperature):
            raise DapError(f"temperature is {self.temperature}; it must be two numbers above 0, first and last")
        initial = 1 - self.p_init
        if self.target_sparsity <= initial:
            raise DapError(
                f"target_sparsity is {self.target_sparsity}, but masks start at an expected sparsity of {initial:.4g} "
                f"(1 - p_init): raise target_sparsity or p_init"
            )
        if self.stop_at is not None and self.stop_at > self.target_sparsity:
            raise DapError(f"stop_at is {self.stop_at}, beyond target_sparsity={self.target_sparsity}: lower it")


@dataclass(frozen=True)
class SwadConfig:
    """Which weights are averaged: those within the valley of the validation loss."""

    converge: int = 3  # segments whose first is the lowest: the valley has begun
    patience: int = 6  # segments of which one must be low, or the valley has ended
    tolerance: float = UNSET  # how far above the losses at its beginning the valley's walls are: 0.3, VLCS 0.2

    def resolved(self, suite: str | None = None) -> Self:
        return replace(self, tolerance=0.2 if suite == "VLCS" else 0.3) if self.tolerance is UNSET else self


@dataclass(frozen=True)
class TrainConfig:
    """Options of dense training. The defaults are DomainBed's; a field left UNSET depends on the suite.

    >>> TrainConfig(swad=SwadConfig()).resolved("DomainNet").check_every
    500
    """

    steps: int = UNSET  # 5,001
    learning_rate: float = 5e-5  # of Adam
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate; cosine: down to 0
    batch_size: int = 32  # per domain, over all processes
    freeze_norms: bool = True  # keep their statistics, as is usual for pretrained networks; not from scratch
    check_every: int = UNSET  # steps between evaluations, which come after step 1, 301, …, and the last
    swad: SwadConfig | None = None  # average the weights
    patience: int | None = None  # evaluations without a better one, after which training ends; None: all steps
    seed: int = 0

    def resolved(self, suite: str | None = None, objective: str = "erm") -> Self:
        """With the values that papers report with in place of UNSET, DomainBed's and SWAD's and MIRO's; checked."""
        long = suite == "DomainNet" and (self.swad is not None or objective == "miro")
        every = {"VLCS": 50, "DomainNet": 500}.get(suite or "", 100) if self.swad else 1_000 if long else 300
        swad = self.swad and self.swad.resolved(suite)
        steps = (15_001 if long else 5_001) if self.steps is UNSET else self.steps
        check_every = every if self.check_every is UNSET else self.check_every
        config = replace(self, steps=steps, check_every=check_every, swad=swad)
        config._check()
        return config

    def canonical(self) -> dict[str, Any]:
        """What a result depends on: an option that came later counts only where it is used."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("patience", None)}

    def _check(self) -> None:
        for name in ("steps", "batch_size", "check_every"):
            if not isinstance(value := getattr(self, name), int) or value < 1:
                raise DapError(f"{name} is {value}; it must be a whole number of at least 1")
        _check_seed(self.seed)
        if not self.learning_rate > 0:
            raise DapError(f"learning_rate is {self.learning_rate}; it must be above 0")
        if not self.weight_decay >= 0:
            raise DapError(f"weight_decay is {self.weight_decay}; it must be at least 0")
        if self.schedule not in ("constant", "cosine"):
            raise DapError(f"schedule is {self.schedule!r}; choose constant or cosine")
        if self.patience is not None and (self.patience < 1 or self.swad is not None):
            raise DapError(f"patience is {self.patience}; it must be at least 1, and SWAD has its own")
        if self.swad is not None and not 1 <= self.swad.converge <= self.swad.patience:
            raise DapError("swad.converge must be at least 1 and at most swad.patience")


@dataclass(frozen=True)
class FinetuneConfig:
    """How training goes on after pruning. All else is as in the dense training, but batch size and seed are those of
    `PruneConfig`, the same for every method.

    >>> FinetuneConfig(steps=200).over(TrainConfig(weight_decay=0.1)).weight_decay
    0.1
    """

    steps: int = UNSET  # as many as mask learning takes
    learning_rate: float = UNSET  # that of the dense training
    check_every: int = UNSET  # steps between evaluations: as in the dense training

    def over(self, dense: TrainConfig) -> TrainConfig:
        rate = dense.learning_rate if self.learning_rate is UNSET else self.learning_rate
        every = dense.check_every if self.check_every is UNSET else self.check_every
        # One checkpoint is chosen, not an average: SWAD's valley needs thousands of steps.
        return replace(dense, steps=self.steps, learning_rate=rate, check_every=every, swad=None, patience=None)


def check_counts(**counts: int | None) -> None:
    """Refuse a count below 1; None is left open."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise DapError(f"{name} is {count}; it must be at least 1")


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise DapError(f"seed is {seed}; it must be a whole number from 0 to 2^63 − 1")


def _tuples(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Lists, as files have them, become tuples; unknown names are an error."""
    for name in values:
        if name not in _names(cls):
            raise DapError(f"unknown option {name!r}; the options of {cls.__name__} are {', '.join(_names(cls))}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _names(cls: type) -> list[str]:
    return [field.name for field in fields(cls)]
