"""What a run is asked to do: frozen values, whose id is a hash of what they say. Imports no torch.

`resolved` gives the options of training and of mask learning the values of their presets. That is what a run's folder
keeps: presets are tuned again, and what was made before must still be read as what it was. What the table of methods
decides (allocation, sparsities, fine-tuning) stays open.
"""

import hashlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Self

from dap.config import UNSET, FinetuneConfig, PruneConfig, TrainConfig, check_counts
from dap.errors import DapError
from dap.specs.attacks import ATTACKS, OPTIONS, attack_named
from dap.specs.methods import BY_FLOPS, METHODS

FORMAT = 1  # of a run's folder


@dataclass(frozen=True)
class TrainSpec:
    """A dense training: images, network, objective, options. The seed also draws the splits: a trial of DomainBed."""

    suite: str
    targets: tuple[str, ...]  # unseen domains; two for leave-one-domain-out selection
    root: str | None = None  # the folder that holds the suite's own
    pixels: int = 224
    on_corrupt: Literal["fail", "skip"] = "fail"
    backbone: str = "resnet50"
    weights: str | None = "pretrained"  # or a file; None: random
    dropout: float = 0.0
    stride_in_1x1: bool = False  # where a ResNet's first blocks halve the image: as in its original weights
    objective: str = "erm"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the objective
    train: TrainConfig = field(default_factory=TrainConfig)
    threads: int | None = None  # of torch, on which the last bits depend; None: as it finds them
    precision: Literal["32-true", "bf16-mixed"] = "32-true"

    kind: typing.ClassVar[str] = "train"

    def resolved(self) -> Self:
        _check(self)
        return replace(self, train=self.train.resolved(self.suite, self.objective))

    def canonical(self) -> dict[str, Any]:
        """What the result depends on: options that were left open have their values. Not where the images are."""
        values = asdict(self) | {"train": self.resolved().train.canonical()}
        del values["root"]
        return _usual_left_out(values)


@dataclass(frozen=True)
class ModelSpec:
    """A dense model that was trained elsewhere, and the images it is pruned on."""

    model: str  # package.module:factory, or a model of timm
    suite: str
    targets: tuple[str, ...] = ()  # unseen domains, for evaluation; none: all are sources
    root: str | None = None
    pixels: int = 224
    on_corrupt: Literal["fail", "skip"] = "fail"
    weights: str | None = None  # a file, or, for a model of timm, pretrained
    train: TrainConfig = field(default_factory=TrainConfig)  # of fine-tuning, but its batch size; its seed draws splits

    kind: typing.ClassVar[str] = "model"

    def resolved(self) -> Self:
        _check(self)
        return replace(self, train=self.train.resolved(self.suite))

    def canonical(self) -> dict[str, Any]:
        values = asdict(self) | {"train": self.resolved().train.canonical()}
        del values["root"]
        return values


@dataclass(frozen=True)
class BestSpec:
    """Of several dense trainings the one that is best on the sources: a search."""

    candidates: tuple[TrainSpec, ...]
    # Sources that every candidate is trained without, one after the other: the best on what it did not see is chosen.
    # None: the best on held-out images.
    left_out: tuple[str, ...] = ()

    kind: typing.ClassVar[str] = "best"

    def without(self, candidate: TrainSpec) -> dict[str, TrainSpec]:
        """The candidate's trainings without its targets and another domain, by that domain."""
        if targets := [domain for domain in self.left_out if domain in candidate.targets]:
            raise DapError(f"{', '.join(targets)} is a target: nothing is chosen by it; leave source domains out")
        # Sorted: without sketch and photo is without photo and sketch, for whichever of them is the target.
        return {
            domain: replace(candidate, targets=tuple(sorted((*candidate.targets, domain)))) for domain in self.left_out
        }

    @property
    def trainings(self) -> tuple[TrainSpec, ...]:
        """Everything that the choice needs."""
        return *self.candidates, *(one for each in self.candidates for one in self.without(each).values())

    def resolved(self) -> Self:
        return replace(self, candidates=tuple(candidate.resolved() for candidate in self.candidates))

    def canonical(self) -> dict[str, Any]:
        values: dict[str, Any] = {"candidates": [candidate.canonical() for candidate in self.candidates]}
        return {**values, "left_out": sorted(set(self.left_out))} if self.left_out else values


@dataclass(frozen=True)
class PruneSpec:
    """A pruning of a dense training, by any method."""

    dense: TrainSpec | BestSpec | ModelSpec | str  # or the folder of the dense training
    method: str = "dap"
    sparsities: tuple[float, ...] | None = None  # None: 20, 40, 60, 80 and 90 %
    allocation: str | None = None  # None: the method's own
    finetuned: bool | None = None  # None: the method's own
    batches: int = 50  # per domain, for methods that only look
    prune: PruneConfig = field(default_factory=PruneConfig)  # masked weights, batch size and seed are for every method
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    threads: int | None = None
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    # Steps of mask learning between looks at held-out and unseen images, for curves; nothing is selected by them.
    watch_every: int | None = None
    recalibrated: bool = False  # statistics of norm layers are estimated again, on `batches` of every source domain
    raw: bool = False  # the paper's masks of single steps, too, where mask learning averages its logits
    root: str | None = None  # the folder that holds the suite's own, if it is not where the dense training had it

    kind: typing.ClassVar[str] = "prune"

    def resolved(self, suite: str | None = None) -> Self:
        """`suite` is that of a dense training of which only the folder is known."""
        _check(self)
        dense = self.dense if isinstance(self.dense, str) else self.dense.resolved()
        return replace(self, dense=dense, prune=self._config(suite))

    def _allocation(self) -> str:
        if self.method not in METHODS:
            raise DapError(f"there is no method {self.method!r}; choose one of {', '.join(METHODS)}")
        return self.allocation or METHODS[self.method].allocation

    def _config(self, suite: str | None = None) -> PruneConfig:
        if not isinstance(self.dense, str):
            suite = self.dense.candidates[0].suite if isinstance(self.dense, BestSpec) else self.dense.suite
        config = self.prune.resolved(self._allocation() in BY_FLOPS, suite)
        alpha = METHODS[self.method].alpha
        return config if alpha is None else replace(config, alpha=alpha)

    def canonical(self) -> dict[str, Any]:
        """What the result depends on: an option that the method does not look at plays no part."""
        allocation, config, tuning, method = self._allocation(), self._config(), self.finetune, METHODS[self.method]
        finetuned = method.finetuned if self.finetuned is None else self.finetuned
        if tuning.steps is UNSET:
            tuning = replace(tuning, steps=config.steps)
        values = asdict(replace(self, prune=config, finetune=tuning, allocation=allocation, finetuned=finetuned))
        values["dense"] = self.dense if isinstance(self.dense, str) else self.dense.canonical()
        del values["root"]
        if self.sparsities is None and ":" not in allocation:
            values["sparsities"] = method.sparsities(allocation)
        if config.paced.start == 1:  # an option that came later
            del values["prune"]["paced"]["start"]
        if config.sensitivity == PruneConfig.sensitivity:  # this one, too
            del values["prune"]["sensitivity"]
        if not method.learns:
            values["prune"] = {key: values["prune"][key] for key in ("include", "exclude", "batch_size", "seed")}
        if self.watch_every is None or not method.learns:
            del values["watch_every"]
        if not (finetuned or method.trains):
            del values["finetune"]
        if not (method.looks or self.recalibrated):
            del values["batches"]
        for name in ("recalibrated", "raw"):
            if not values[name]:
                del values[name]
        return _usual_left_out(values)


@dataclass(frozen=True)
class EvaluateSpec:
    """An evaluation of the models of a training or of a pruning, on every domain of their suite."""

    run: TrainSpec | BestSpec | PruneSpec | str  # or its folder, or the file of a classifier
    sparsities: tuple[float | str, ...] | None = None  # of a pruning, or patterns, as they were asked for; None: all
    with_dense: bool = True  # of a pruning: its dense model, too
    attacks: tuple[Annotated[str, ATTACKS], ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)  # of attacks
    restarts: int = 1  # this option and the next two: of the attacks that take them
    random_start: bool = True
    seed: int = 0
    corruptions: bool = False
    images: int | None = None  # of each domain, for attacks and corruptions; None: all
    per_side: bool = False  # so many of all sources together, and of all unseen domains
    interpret: bool = False
    root: str | None = None  # the folder that holds the suite's own, if it is not where it was
    threads: int | None = None

    kind: typing.ClassVar[str] = "evaluate"

    def resolved(self) -> Self:
        _check(self)
        known = EvaluateSpec.severities
        if not self.severities or not set(self.severities) <= set(known):
            raise DapError(f"severities is {list(self.severities)}; choose at least one from 1 to {len(known)}")
        return self if isinstance(self.run, str) else replace(self, run=self.run.resolved())

    def canonical(self) -> dict[str, Any]:
        values = {**asdict(self), "run": self.run if isinstance(self.run, str) else self.run.canonical()}
        values["sparsities"] = None if self.sparsities is None else [str(wish) for wish in self.sparsities]
        values["attacks"] = sorted(set(self.attacks))
        values["severities"] = sorted(set(self.severities))
        del values["root"]
        for option in OPTIONS:
            if not any(option in attack_named(name).options for name in self.attacks):
                del values[option]
        if not (self.attacks or self.corruptions):
            del values["images"]
        if not self.per_side or "images" not in values:
            del values["per_side"]
        if not self.attacks or values["severities"] == [1, 2, 3, 4, 5]:
            del values["severities"]
        return values


Spec = TrainSpec | BestSpec | PruneSpec | EvaluateSpec
KINDS: dict[str, type[Spec]] = {cls.kind: cls for cls in (TrainSpec, BestSpec, PruneSpec, EvaluateSpec)}


def _check(spec: Any) -> None:
    """Refuse what no run can do, whatever its images and its model."""
    counts = ("threads", "pixels", "batches", "watch_every", "images", "restarts")
    check_counts(**{name: getattr(spec, name, None) for name in counts})
    targets = getattr(spec, "targets", ())
    for target in targets:
        if not target:
            raise DapError(f"targets is {','.join(targets)!r}, with an empty name: name each domain once")
        if targets.count(target) > 1:
            raise DapError(f"targets has {target!r} twice: name each domain once")


def _usual_left_out(values: dict[str, Any]) -> dict[str, Any]:
    """An option that came later counts only where it is used: ids stay what they are."""
    if values["precision"] == "32-true":
        del values["precision"]
    return values


def identity(spec: Spec) -> str:
    """Twelve hexadecimal digits: specs that ask for the same have the same.

    >>> identity(TrainSpec("digits", ("plain",))) == identity(TrainSpec("digits", ("plain",), root="elsewhere"))
    True
    """
    spec = read(type(spec), asdict(spec), spec.kind)  # a whole number in place of a float is one, as in a file
    content = json.dumps({"kind": spec.kind, **spec.canonical()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def folder_name(spec: Spec) -> str:
    """Of a run among others."""
    return f"{spec.kind}-{identity(spec)}"


def read(cls: type, values: Any, where: str) -> Any:
    """A dataclass from plain values, as files hold them. An error names the place, and what would be right.

    >>> read(TrainSpec, {"suite": "digits", "targets": ["plain"], "train": {"steps": 5}}, "train").train.steps
    5
    """
    if not isinstance(values, Mapping):
        raise DapError(f"{where} is {values!r}; it must have the options of {cls.__name__}")
    hints, known = typing.get_type_hints(cls, include_extras=True), {part.name: part for part in fields(cls)}
    for name in values:
        if name not in known:
            raise DapError(f"{where} has no option {name!r}; it has {', '.join(known)}")
    for name, part in known.items():
        if name not in values and part.default is MISSING and part.default_factory is MISSING:
            raise DapError(f"{where} needs {name}")
    open_ = [name for name, value in values.items() if value is None and known[name].default is None]  # UNSET, too
    return cls(
        **{
            name: None if name in open_ else _convert(hints[name], value, f"{where}.{name}")
            for name, value in values.items()
        }
    )


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _convert_any(arguments, value, where)
    if origin in (Literal, Annotated):  # the values themselves, or a registry of them
        choices = arguments if origin is Literal else arguments[1]
        if value not in choices:
            raise DapError(f"{where} is {value!r}; choose one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        each = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        if len(each) == len(value):
            return tuple(
                _convert(one, item, f"{where}[{at}]") for at, (one, item) in enumerate(zip(each, value, strict=True))
            )
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else read(hint, value, where)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    raise DapError(f"{where} is {value!r}; it must be {_words(hint)}")


def _convert_any(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and types.NoneType in hints:
        return None
    errors = []
    for hint in hints:
        if hint is types.NoneType:
            continue
        if is_dataclass(hint) and not isinstance(value, Mapping | hint):
            continue
        try:
            return _convert(hint, value, where)
        except DapError as error:
            errors.append(error)
    raise errors[0] if errors else DapError(f"{where} is {value!r}; it must be {' or '.join(map(_words, hints))}")


def _words(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "a list"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "null"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
