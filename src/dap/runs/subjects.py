"""What is evaluated: the models of a run, or of a file, and the images they are for."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from dap.data import load_suite
from dap.errors import DapError
from dap.masks.masks import Masks
from dap.models import ModelCard, load_classifier
from dap.runs.dense import load_dense
from dap.runs.opening import open_dense
from dap.runs.pruning import load_pruned
from dap.runs.sources import Sources, check_images, divide, suite_of
from dap.runtime.offline import local_only
from dap.runtime.reading import reading, require_types
from dap.specs.file_names import RESULT
from dap.specs.run_files import intact, read_result, read_spec
from dap.specs.runs import ModelSpec, PruneSpec, TrainSpec

# What the card of a model says about its images; see `notes_of`.
_NOTES = {"suite": str, "images": str, "targets": list[str], "seed": int, "on_corrupt": str, "listings": dict[str, str]}


@dataclass(frozen=True)
class Subjects:
    """Models on the same images."""

    models: dict[str, nn.Module]  # "dense", and by the sparsities that were asked for; "model", of a file
    masks: dict[str, Masks]  # of the sparse ones
    dense: nn.Module | None  # whose weights they mask
    sources: Sources
    card: ModelCard


def model_names(run: Path) -> list[str]:
    """Of the models of a finished run: `dense`, or the sparsities that were asked for."""
    spec = read_spec(run)
    if not isinstance(spec, TrainSpec | PruneSpec):
        raise DapError(f"{run} holds no model: give the folder of a dense training or of a pruning")
    if not (run / RESULT).is_file():
        raise DapError(f"{run} is not done: there is no {RESULT} in it")
    if isinstance(spec, TrainSpec):
        return ["dense"]
    with intact(run / RESULT):
        return list(read_result(run)["sparse"])


def open_subjects(
    run: Path,
    sparsities: tuple[float | str, ...] | None = None,
    dense: Path | None = None,
    root: str | None = None,
    *,
    trust_code: bool = False,
) -> Subjects:
    """The dense model, and of a pruning also the sparse ones, or those of `sparsities`.

    `dense` says where the dense training is now, `root` where the images are, if they were moved. `trust_code` allows
    to import the code that makes the model, and to fetch its images from a hub.
    """
    if run.is_file():
        if sparsities:
            raise DapError(f"{run} holds one model: sparsities are for the folder of a pruning")
        with local_only(unless=trust_code):
            return _from_file(run, root)
    names = model_names(run)
    wished = names if sparsities is None else [_as_named(wish, names) for wish in sparsities]
    if unknown := [name for name in wished if name not in names]:
        raise DapError(f"{run} has no model {', '.join(unknown)}; it has {', '.join(names)}")
    spec = read_spec(run)
    if isinstance(spec, TrainSpec):
        spec = spec if root is None else replace(spec, root=root)
        model, _, card = load_dense(run)
        with local_only(unless=trust_code):
            suite = suite_of(spec)
        check_images(suite, card)
        return Subjects({"dense": model}, {}, model, divide(suite, spec.targets, spec.train.seed), card)
    assert isinstance(spec, PruneSpec)
    opened = open_dense(_moved(spec, root), run, dense, root, trust_code=trust_code)
    subjects = Subjects({"dense": opened.model}, {}, opened.model, opened.sources, opened.card)
    for name in wished:
        subjects.models[name], subjects.masks[name], _ = load_pruned(run, name, dense, opened=opened)
    return subjects


def _as_named(wish: float | str, names: list[str]) -> str:
    """0.50 is 0.5."""
    wish = str(wish)
    with suppress(ValueError):  # a pattern
        return next((name for name in names if ":" not in name and float(name) == float(wish)), wish)
    return wish


def _moved(spec: PruneSpec, root: str | None) -> PruneSpec:
    """A user's own model is opened with its images, wherever they are."""
    if root is None or not isinstance(spec.dense, ModelSpec):
        return spec
    return replace(spec, dense=replace(spec.dense, root=root))


def _from_file(file: Path, root: str | None) -> Subjects:
    model, card = load_classifier(file)
    missing = [name for name in ("suite", "targets", "seed") if name not in card.notes]
    if missing:
        raise DapError(f"{file} does not say which images it is for ({', '.join(missing)}): evaluate the run's folder")
    notes = {"images": card.notes["suite"], "on_corrupt": "fail", "listings": {}, **card.notes}
    with reading(file, "a classifier file", "make it again"):
        require_types(notes, _NOTES)
    suite = load_suite(notes["images"], root, card.pixels, on_corrupt=notes["on_corrupt"])
    check_images(suite, card)
    return Subjects({"model": model}, {}, None, divide(suite, tuple(notes["targets"]), notes["seed"]), card)
