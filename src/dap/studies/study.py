"""A study: one file that stands for many runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dap.errors import DapError
from dap.specs import BestSpec, PruneSpec, Spec, TrainSpec, folder_name, read
from dap.studies.grid import expand

_KEYS = ("name", "out", "threads", "train", "prune")


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
        if name not in self.runs:
            before: tuple[Spec, ...] = ()
            if isinstance(spec, BestSpec):
                before = spec.candidates
            elif isinstance(spec, PruneSpec) and isinstance(spec.dense, TrainSpec | BestSpec):
                before = (spec.dense,)
            self.needs[name] = [self.add(need) for need in before]
            self.runs[name] = spec
        return name

    def place(self, run: str) -> Path:
        return self.folder / run

    def done(self, run: str) -> bool:
        return (self.place(run) / "result.json").exists()

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
    import yaml

    file = Path(file)
    if not file.is_file():
        raise DapError(f"no study file at {file}")
    try:
        values = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        line = f", line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
        raise DapError(f"{file}{line} is not sound YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(values, Mapping):
        raise DapError(f"{file} holds no study: it needs at least `train:`")
    for key in values:
        if key not in _KEYS:
            raise DapError(f"{file} has no option {key!r}; it has {', '.join(_KEYS)}")
    name = str(values.get("name", file.stem))
    threads = values.get("threads", 1)
    if not isinstance(threads, int) or threads < 1:
        raise DapError(f"threads is {threads!r}; it must be a whole number of at least 1")
    study = Study(name, Path(out or values.get("out") or Path("runs") / name), threads)
    for dense in _trainings(values.get("train"), threads):
        study.add(dense)
        for spec in _prunings(values.get("prune"), dense, threads):
            study.add(spec)
    return study


def _blocks(values: Any, name: str) -> list[dict[str, Any]]:
    blocks = values if isinstance(values, list) else [values]
    if not all(isinstance(block, Mapping) for block in blocks):
        raise DapError(f"{name} must be options, or a list of them")
    return [dict(block) for block in blocks]


def _trainings(values: Any, threads: int) -> Iterator[TrainSpec | BestSpec]:
    if values is None:
        raise DapError("the study has no `train:`: say which dense models it is about")
    for number, block in enumerate(_blocks(values, "train")):
        where = f"train[{number}]" if isinstance(values, list) else "train"
        search = block.pop("search", None)
        for row in expand(block, TrainSpec, {"target": str, "seed": int}):
            if "target" in row:
                row["targets"] = [row.pop("target")]
            seed = row.pop("seed", None)
            spec = replace(read(TrainSpec, row, where), threads=row.get("threads", threads))
            if seed is not None:
                spec = replace(spec, train=replace(spec.train, seed=seed))
            yield spec if search is None else _search(spec, search, where)


def _search(spec: TrainSpec, values: Any, where: str) -> BestSpec:
    """Trials with options drawn from the usual ranges; the first has the defaults."""
    from dap.studies.trials import Search, draw_trials

    return BestSpec(draw_trials(spec, read(Search, values, f"{where}.search")))


def _prunings(values: Any, dense: TrainSpec | BestSpec, threads: int) -> Iterator[PruneSpec]:
    trained = dense.candidates[0] if isinstance(dense, BestSpec) else dense
    for number, block in enumerate(_blocks(values, "prune") if values is not None else ()):
        where = f"prune[{number}]" if isinstance(values, list) else "prune"
        if "dense" in block:
            raise DapError(f"{where} has no option 'dense': it is every model under train")
        for row in expand(block, PruneSpec):
            config = row.pop("prune", {})
            if isinstance(config, Mapping):
                config = {"seed": trained.train.seed, **config}  # a trial has one seed
            yield read(PruneSpec, {"threads": threads, **row, "dense": dense, "prune": config}, where)
