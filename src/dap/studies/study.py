"""A study: one file that stands for many runs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from dap.errors import DapError
from dap.runtime.files import expanded, write_atomic
from dap.specs.file_names import MODEL, OBJECTIVE, RESULT, files_of
from dap.specs.methods import METHODS
from dap.specs.run_files import intact, read_result
from dap.specs.runs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, Spec, TrainSpec, folder_name, read
from dap.specs.suites import SUITES, require_domains
from dap.studies.grid import expand
from dap.studies.yaml_file import read_yaml

_OnImages = TypeVar("_OnImages", TrainSpec, ModelSpec)
FILES = "studies"  # beside the runs: of every study that they are of, its file
_KEYS = ("name", "out", "threads", "train", "model", "prune", "evaluate")


@dataclass(frozen=True)
class Study:
    """Runs, each after those it needs."""

    name: str
    folder: Path
    threads: int = 1  # of a run
    runs: dict[str, Spec] = field(default_factory=dict)  # by the name of their folder
    needs: dict[str, list[str]] = field(default_factory=dict)  # what must be done before

    def add(self, spec: Spec) -> str:
        """With what it needs; once, however often it is added."""
        name = folder_name(spec)
        if name in self.runs and getattr(self.runs[name], "root", None) != getattr(spec, "root", None):
            raise DapError(f"two runs differ only in root, which is where the images are, not which: {name}")
        if name not in self.runs:
            before: tuple[Spec, ...] = ()
            if isinstance(spec, BestSpec):
                before = spec.trainings
            elif isinstance(spec, PruneSpec) and isinstance(spec.dense, TrainSpec | BestSpec):
                before = (spec.dense,)
            elif isinstance(spec, EvaluateSpec) and not isinstance(spec.run, str):
                before = (spec.run,)
            self.needs[name] = [self.add(need) for need in before]
            self.runs[name] = spec
        return name

    def place(self, run: str) -> Path:
        return self.folder / run

    def done(self, run: str) -> bool:
        return (self.place(run) / RESULT).exists()

    def usable(self, run: str) -> bool:
        """Done, and what other runs need of it is there: a result may have come alone, from another machine."""
        return self.done(run) and not self.again([run])

    def again(self, runs: Iterable[str]) -> list[str]:
        """What is done, but has to be made again for `runs` to be used: its models are gone."""
        found: set[str] = set()
        queue = list(runs)
        while queue:
            run = self._owner(queue.pop())
            if self.done(run) and not all(map(Path.is_file, self._files(run))):
                found.add(run)
            if isinstance(self.runs[run], PruneSpec):  # which is opened with its dense model
                queue += self.needs[run]
        return [run for run in self.runs if run in found]

    def again_for(self, pending: Iterable[str]) -> list[str]:
        """The same, for what `pending` runs need; a search looks at numbers alone."""
        openers = (run for run in pending if not isinstance(self.runs[run], BestSpec))
        return self.again(need for run in openers for need in self.needs[run])

    def can_begin(self, run: str) -> bool:
        ready = self.done if isinstance(self.runs[run], BestSpec) else self.usable
        return all(map(ready, self.needs[run]))

    def _owner(self, run: str) -> str:
        """Whose model it is: of a search, that of the chosen trial."""
        is_search = isinstance(self.runs[run], BestSpec) and self.done(run)
        if not is_search:
            return run
        with intact(self.place(run) / RESULT):
            return next(one for one in self.needs[run] if one == read_result(self.place(run))["chosen"])

    def _files(self, run: str) -> list[Path]:
        """What other runs need of it."""
        spec, place = self.runs[run], self.place(run)
        if isinstance(spec, TrainSpec):
            return [place / MODEL, place / OBJECTIVE]
        if not isinstance(spec, PruneSpec):
            return []
        with intact(place / RESULT):
            return [file for row in read_result(place)["sparse"].values() for file in files_of(place, row)]

    def shard(self, index: int, count: int) -> list[str]:
        """Every `count`th part of the runs from the `index`th on, from 1; a run and what it needs stay together."""
        root: dict[str, str] = {}
        for run, needs in self.needs.items():
            root[run] = root[needs[0]] if needs else run
            for need in needs:  # candidates of one search
                root = {one: root[run] if top == root[need] else top for one, top in root.items()}
        ours = set(list(dict.fromkeys(root.values()))[index - 1 :: count])
        return [run for run in self.runs if root[run] in ours]


def read_study(file: str | Path, out: str | Path | None = None) -> Study:
    """The study in a YAML file. Its runs go to `out`, else to the file's own `out`, else to runs/<name>."""
    file = Path(file)
    values = read_yaml(file)
    if not isinstance(values, Mapping):
        raise DapError(f"{file} holds no study: it needs at least `train:` or `model:`")
    for key in values:
        if key not in _KEYS:
            raise DapError(f"{file} has no option {key!r}; it has {', '.join(_KEYS)}")
    name = str(values.get("name", file.stem))
    threads = values.get("threads", 1)
    if not isinstance(threads, int) or threads < 1:
        raise DapError(f"threads is {threads!r}; it must be a whole number of at least 1")
    if not isinstance(values.get("out", ""), str):
        raise DapError(f"out is {values['out']!r}; it must be the name of a folder")
    study = Study(name, expanded(out or values.get("out") or Path("runs") / name), threads)
    if not values.keys() & {"train", "model"}:
        raise DapError("the study has no `train:` and no `model:`: say which dense models it is about")
    dense = (*_trainings(values.get("train", []), threads), *_models(values.get("model", [])))
    for one in dense:
        specs: list[TrainSpec | BestSpec | PruneSpec] = [] if isinstance(one, ModelSpec) else [one]
        specs += _prunings(values.get("prune", []), one, threads)
        for spec in specs:
            study.add(spec)
            for evaluation in _evaluations(values, spec, threads):
                study.add(evaluation)
    if not study.runs:
        raise DapError(f"{file} stands for no run: a list in it is empty, or `model:` has no `prune:`")
    return study


def check_targets(study: Study) -> None:
    """Refuse to begin with a domain that a benchmark does not have; what a folder has, those know that open it."""
    for spec in study.runs.values():
        dense = spec.dense if isinstance(spec, PruneSpec) else spec
        if isinstance(dense, TrainSpec | ModelSpec) and dense.suite in SUITES:
            require_domains(dense.suite, dense.targets, SUITES[dense.suite].images)


def keep_file(study: Study, file: str | Path) -> None:
    """The study's file beside its runs, for whoever asks later what they were. Several studies can share a folder."""
    kept = study.folder / FILES / Path(file).name
    if not (kept.exists() and kept.samefile(file)):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, Path(file).read_bytes(), inside=study.folder)


def kept_files(folder: Path) -> list[Path]:
    """Of the studies whose runs are in `folder`."""
    return sorted((folder / FILES).glob("[!.]*"))  # not one that is just being written


def _blocks(values: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Options, or a list of them, each with what to call it in an error."""
    blocks = values if isinstance(values, list) else [values]
    for number, block in enumerate(blocks):
        if not isinstance(block, Mapping):
            raise DapError(f"{name} must be options, or a list of them, not {block!r}")
        yield f"{name}[{number}]" if isinstance(values, list) else name, dict(block)


def _trainings(values: Any, threads: int) -> Iterator[TrainSpec | BestSpec]:
    for where, block in _blocks(values, "train"):
        search = block.pop("search", None)
        for spec in _on_images(TrainSpec, {"threads": threads, **block}, where):
            yield spec if search is None else _search(spec, search, where)


def _models(values: Any) -> Iterator[ModelSpec]:
    """Dense models that were trained elsewhere."""
    for where, block in _blocks(values, "model"):
        yield from _on_images(ModelSpec, block, where)


def _on_images(cls: type[_OnImages], block: dict[str, Any], where: str) -> Iterator[_OnImages]:
    """Everything that `block` stands for; `target` and `seed` are short for two of its options."""
    inner = block.get("train")
    if "target" in block and "targets" in block:
        raise DapError(f"{where} has both target and targets: leave one out")
    if "seed" in block and isinstance(inner, Mapping) and "seed" in inner:
        raise DapError(f"{where} has both seed and train.seed: leave one out")
    for row in expand(block, cls, {"target": str, "seed": int}):
        if "target" in row:
            row["targets"] = [row.pop("target")]
        seed = row.pop("seed", None)
        if seed is not None and type(seed) is not int:
            raise DapError(f"{where}.seed is {seed!r}; it must be a whole number")
        spec = read(cls, row, where)
        yield spec if seed is None else replace(spec, train=replace(spec.train, seed=seed))


def _search(spec: TrainSpec, values: Any, where: str) -> BestSpec:
    """Trials with options drawn from the usual ranges; the first has the defaults."""
    from dap.studies.trials import Search, draw_trials

    search = read(Search, values, f"{where}.search")
    left_out = tuple(domain for domain in search.leave_out if domain not in spec.targets)
    if search.leave_out and not left_out:
        raise DapError(f"{where}.search.leave_out names no source domain, only {', '.join(spec.targets)}")
    return BestSpec(draw_trials(spec, search), left_out)


def _prunings(values: Any, dense: TrainSpec | BestSpec | ModelSpec, threads: int) -> Iterator[PruneSpec]:
    trained = dense.candidates[0] if isinstance(dense, BestSpec) else dense
    for where, block in _blocks(values, "prune"):
        if "dense" in block:
            raise DapError(f"{where} has no option 'dense': it is every model under train and model")
        for row in expand(block, PruneSpec):
            config = row.pop("prune", {})
            if isinstance(config, Mapping):
                config = {"seed": trained.train.seed, **config}  # a trial has one seed
            yield read(PruneSpec, {"threads": threads, **row, "dense": dense, "prune": config}, where)


def _evaluations(
    values: Mapping[str, Any], run: TrainSpec | BestSpec | PruneSpec, threads: int
) -> Iterator[EvaluateSpec]:
    """`evaluate:` with nothing behind it asks for everything."""
    if "evaluate" not in values:
        return
    for where, block in _blocks(values["evaluate"] or {}, "evaluate"):
        if not isinstance(run, PruneSpec) or METHODS[run.method].whole:
            block.pop("sparsities", None)  # a dense model has none
        for row in expand(block, EvaluateSpec):
            # The dense model of many prunings is evaluated once, by itself.
            yield read(EvaluateSpec, {"threads": threads, "with_dense": False, **row, "run": run}, where)
