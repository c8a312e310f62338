"""What a run has to ship: its models and any between them, as files that are checked on its images."""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from dap.config import check_counts
from dap.data import Images
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.evaluation.pixels import Joined
from dap.export.costs import compare_costs
from dap.export.int8 import Runtime, quantise_onnx
from dap.export.ladder import Ladder, Rung
from dap.export.onnx import export_onnx, open_onnx
from dap.export.patterns import check_pattern, semi_structured_layers, summary
from dap.export.programs import export_program
from dap.export.wishes import Wish, find
from dap.masks.attach import is_transposed
from dap.masks.masks import Masks
from dap.runs.opening import save_model
from dap.runs.sources import Sources
from dap.runs.subjects import Subjects, model_names, open_subjects
from dap.specs.file_names import RESULT
from dap.specs.run_files import intact, read_result, read_spec
from dap.specs.runs import PruneSpec
from dap.structure import find_channels

GRAPHS = ("onnx", "torch")  # formats that hold a network, not only its tensors
_CHECKED, _CALIBRATED = 8, 64  # images of each domain
Tell = Callable[[str, int, int, str], None]  # a stage, how much of how much is done, and a note


def ship(
    run: Path,
    out: Path,
    kind: str,
    wish: Wish | str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    int8: bool = False,
    threads: int | None = None,
    dense: Path | None = None,
    root: str | None = None,
    trust_code: bool = False,
    tell: Tell = lambda *_: None,
) -> dict[str, Any]:
    """Write a model of a run to the file `out`, as `kind` says: dense, safetensors, onnx or torch. What is in it.

    `wish` is one of the models that a pruning made, by its name, or what the file must be, at which the least is cut.
    `trust_code` is that of `open_subjects`.
    """
    check_counts(threads=threads)
    name = wish if isinstance(wish, str) else None
    ladder, subjects = open_ladder(run, name, wish is None, dense, root, trust_code=trust_code)
    shape = tuple(some_images(subjects.sources).shape[1:])
    write, write_dense = _writer(kind, subjects, dtype, int8), _writer(kind, subjects, dtype)
    if isinstance(wish, Wish):
        rung = find(ladder, wish, kind, write, shape, threads, lambda *tried: tell(wish.name, *tried), write_dense)
    else:
        rung = ladder.at(ladder.highest)
    pattern = _check_patterns(subjects)
    difference = write(rung, out)
    shipped = rung.model if kind in GRAPHS else rung.masked
    found: dict[str, Any] = {
        "file": str(out),
        "format": kind,
        "bytes": out.stat().st_size,
        "parameters": sum(parameter.numel() for parameter in shipped.parameters()),
        "zeros": sum(int((parameter == 0).sum()) for parameter in shipped.parameters()),
        **({} if difference is None else {"difference": difference}),
    }
    if pattern is not None:
        found["pattern"] = pattern
        if pattern == "2:4" and kind == "dense":
            found["on a GPU"] = summary(semi_structured_layers(deepcopy(shipped).to(dtype)))
    if isinstance(wish, Wish):
        found["cut"] = {"of": "weights" if ladder.channels is None else "FLOPs", "share": rung.share}
    if isinstance(wish, Wish) or int8:
        models = {"dense": ladder.dense, "file": rung.masked}
        if int8:
            models = {"dense": ladder.dense, "float": rung.masked, "file": Runtime(open_onnx(out))}
        found["validation"] = _validation(models, subjects.sources, tell)
    if (rung.whole or int8) and kind in GRAPHS:
        tell("latencies", 0, 1, "")
        with TemporaryDirectory() as folder:
            files = {}
            if kind == "onnx":
                files = {"dense": Path(folder, "dense.onnx"), "file": out}
                write_dense(ladder.base, files["dense"])
            costs = compare_costs({"dense": ladder.dense, "file": shipped}, files, shape, threads)
        found["costs"] = {name: cost._asdict() for name, cost in costs.items()}
        tell("latencies", 1, 1, "")
    return found


def open_ladder(
    run: Path,
    name: str | None = None,
    single: bool = False,
    dense: Path | None = None,
    root: str | None = None,
    *,
    trust_code: bool = False,
) -> tuple[Ladder, Subjects]:
    """The models of a dense training or of a pruning: all, the one of that `name`, or, if it is a `single` one, it.

    `dense` says where the dense training is now, `root` where the images are, if they were moved. `trust_code` is that
    of `open_subjects`.
    """
    names = model_names(run)
    if names == ["dense"]:
        if name is not None or not single:
            raise DapError(f"{run} is a dense training: prune it first, or leave the sparsity out")
        subjects = open_subjects(run, None, dense, root, trust_code=trust_code)
        return Ladder(subjects.models["dense"], {}), subjects
    if single and len(names) > 1:
        raise DapError(f"{run} has several models: choose one with --sparsity {', '.join(names)}")
    subjects = open_subjects(run, None if name is None else (name,), dense, root, trust_code=trust_code)
    spec, rows = read_spec(run), read_result(run)["sparse"]
    assert isinstance(spec, PruneSpec)
    assert subjects.dense is not None
    with intact(run / RESULT):
        by_flops = all("flops" in rows[name] for name in subjects.masks)
        fixed = any(":" in name or rows[name]["weights moved"] for name in subjects.masks)
        made = {
            float(name) if by_flops else _share(name, masks): (subjects.models[name], masks)
            for name, masks in subjects.masks.items()
        }
    channels = None
    if by_flops:
        channels = find_channels(subjects.dense, some_images(subjects.sources), spec.prune.include, spec.prune.exclude)
    return Ladder(subjects.dense, made, channels, fixed), subjects


def _share(wished: str, masks: Masks) -> float:
    """What was asked for, unless it cuts something else: patterns, and whole filters of layers that keep some."""
    near = ":" not in wished and math.isclose(float(wished), masks.sparsity, abs_tol=1 / masks.total)
    return float(wished) if near else masks.sparsity


def _check_patterns(subjects: Subjects) -> str | None:
    """The pattern that masks were cut to, if there is one, and they do follow it."""
    pattern = next((name for name in subjects.masks if ":" in name), None)
    if pattern is None or subjects.dense is None:
        return None
    modules = {name: subjects.dense.get_submodule(name.rpartition(".")[0]) for name in subjects.masks[pattern]}
    n, m = map(int, pattern.split(":"))
    masks = subjects.masks[pattern]
    check_pattern({name: masks[name] for name, module in modules.items() if not is_transposed(module)}, n, m)
    return pattern


def some_images(sources: Sources) -> Tensor:
    """Held-out ones of every source domain."""
    return torch.cat([next(iter(Joined([data], _CHECKED)))[0] for data in sources.held_out.values()])


def _calibration(sources: Sources) -> Iterator[Tensor]:
    """Training images of every source domain, as evaluation prepares them."""
    for data in sources.train.values():
        plain = data.augmented(False) if isinstance(data, Images) else data
        for images, _ in Joined([plain], _CALIBRATED):
            yield images


def _writer(
    kind: str, subjects: Subjects, dtype: torch.dtype, int8: bool = False
) -> Callable[[Rung, Path], float | None]:
    """Writes a model in one of the formats; where the file can be run, by how much its logits differ before `int8`.

    A network with its graph ships without the channels that are cut. Tensors alone keep zeros in their place, so that
    they fit the model's own class.
    """

    images = some_images(subjects.sources)

    def write(rung: Rung, path: Path) -> float | None:
        if kind == "onnx" and int8:
            with TemporaryDirectory() as folder:
                whole = Path(folder, "float.onnx")
                difference = export_onnx(rung.model, whole, subjects.card, images, rung.masked)
                quantise_onnx(whole, path, _calibration(subjects.sources))
            return difference
        if kind == "onnx":
            return export_onnx(rung.model, path, subjects.card, images, rung.masked)
        if kind == "torch":
            return export_program(rung.model, path, images, rung.masked)
        model = rung.masked if dtype == torch.float32 else deepcopy(rung.masked).to(dtype)
        save_model(model, path, subjects.card, sparse=kind == "safetensors")
        return None

    return write


def _validation(models: Mapping[str, nn.Module], sources: Sources, tell: Tell) -> dict[str, float]:
    """The mean accuracy on the sources' held-out images."""
    found = {}
    for done, (name, model) in enumerate(models.items()):
        tell("validation", done, len(models), name)
        right = [accuracy(model, data, domain=domain) for domain, data in sources.held_out.items()]
        found[name] = sum(right) / len(right)
    tell("validation", len(models), len(models), "")
    return found
