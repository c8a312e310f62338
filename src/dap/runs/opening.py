"""The dense model that a pruning begins with: of a training, the best of several, or one from elsewhere."""

import importlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from dap.config import TrainConfig
from dap.data import Suite
from dap.errors import DapError
from dap.models import Classifier, ModelCard, create_classifier, load_weights, save_classifier, save_sparse
from dap.models.weights import read_weights
from dap.objectives import Erm, Objective
from dap.runs.dense import load_dense
from dap.runs.sources import Sources, check_images, divide, notes_of, suite_of
from dap.runs.trust import check_code
from dap.runtime.offline import local_only
from dap.runtime.tensors import save_tensors
from dap.specs.file_names import DENSE, RESULT, SPEC
from dap.specs.run_files import intact, own, read_json, read_result, read_spec
from dap.specs.runs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, Spec, TrainSpec, folder_name, read


@dataclass(frozen=True)
class Opened:
    """A dense model, ready to be pruned."""

    model: nn.Module
    objective: Objective  # as training left it
    card: ModelCard
    sources: Sources
    train: TrainConfig  # how it was trained, and will be trained on


def open_dense(
    spec: PruneSpec,
    folder: Path,
    moved_to: Path | None = None,
    root: str | None = None,
    *,
    trust_code: bool = False,
) -> Opened:
    """What `spec`, whose folder is given, prunes; `moved_to` says where a dense training is now, `root` its images.

    `trust_code` allows what `dap.runs.trust` refuses otherwise: to import the model's code, and to fetch from a hub.
    """
    check_code(spec.dense, trust_code)
    with local_only(unless=trust_code):
        if isinstance(spec.dense, ModelSpec):
            return open_model(spec.dense, suite_of(spec.dense))
        return _open_trained(spec, folder, moved_to, root or spec.root)


def _open_trained(spec: PruneSpec, folder: Path, moved_to: Path | None, root: str | None) -> Opened:
    assert not isinstance(spec.dense, ModelSpec)
    place = moved_to or place_of(spec.dense, folder)
    if not place.is_dir():
        remedy = (
            "for a model of your own give its images with --suite"
            if ":" in place.name
            else "train it, or say where it is"
        )
        raise DapError(f"the dense training {place} is not there: {remedy}")
    model, objective, card = load_dense(place)
    trained = read_spec(place)
    if not isinstance(trained, TrainSpec):
        raise DapError(f"{place} is no dense training: give the folder of one")
    trained = trained if root is None else replace(trained, root=root)
    suite = suite_of(trained)
    check_images(suite, card)
    sources = divide(suite, trained.targets, trained.train.seed)
    return Opened(model, objective, card, sources, trained.resolved().train)


def is_there(spec: PruneSpec, folder: Path, moved_to: Path | None = None) -> bool:
    """Whether the dense training can be looked at."""
    return not isinstance(spec.dense, ModelSpec) and ((moved_to or place_of(spec.dense, folder)) / RESULT).is_file()


Asked = TypeVar("Asked", PruneSpec, EvaluateSpec)


def settled(spec: Asked, folder: Path) -> Asked:
    """With a name for the run that it is about which leads there from `folder`, whoever asks from where.

    It is the name that the folder has already, if that leads there, too.
    """
    field = "dense" if isinstance(spec, PruneSpec) else "run"
    name = getattr(spec, field)
    if not isinstance(name, str) or not Path(name).exists():
        return spec
    place = Path(name).resolve()
    kept = getattr(read_spec(folder), field, None) if (folder / SPEC).is_file() else None
    names = [*([kept] if isinstance(kept, str) else []), name, str(place)]
    return replace(spec, **{field: next(name for name in names if place_of(name, folder).resolve() == place)})


def trained_of(spec: PruneSpec, folder: Path) -> TrainSpec | BestSpec | ModelSpec:
    """How the dense model was made, also where it is not there any more."""
    if not isinstance(spec.dense, str):
        return spec.dense
    place = place_of(spec.dense, folder)
    noted = read_json(own(folder, DENSE)).get("trained") if (folder / DENSE).is_file() else None
    if noted is None or (place / SPEC).is_file():
        trained = read_spec(place)
    else:
        with intact(folder / DENSE):
            trained = read(TrainSpec, noted, str(folder / DENSE))
    if not isinstance(trained, TrainSpec):
        raise DapError(f"{place} is no dense training: give the folder of one")
    return trained


def suite_pruned(spec: PruneSpec, folder: Path, moved_to: Path | None = None) -> str | None:
    """The suite of a dense training that only its folder tells of; None if it is not there."""
    if not isinstance(spec.dense, str) or not is_there(spec, folder, moved_to):
        return None
    dense = read_spec(moved_to or place_of(spec.dense, folder))
    return dense.suite if isinstance(dense, TrainSpec) else None


def place_of(run: Spec | str, folder: Path) -> Path:
    """Where a run is that the one in `folder` needs: a study keeps its runs side by side."""
    if isinstance(run, str):
        # It was said from a folder above, as a rule; where we are now says nothing about it.
        above = (parent / run for parent in folder.absolute().parents)
        place = next((place for place in (*above, Path(run)) if place.exists()), Path(run))
        return Path(run) if Path(run).absolute() == place else place
    place = folder.parent / folder_name(run)
    if isinstance(run, BestSpec) and (place / RESULT).is_file():
        with intact(place / RESULT):
            place = folder.parent / read_result(place)["chosen"]
    return place


def open_model(spec: ModelSpec, suite: Suite) -> Opened:
    """A model from elsewhere, to be pruned on the images of `suite`. It may import code: see `check_code`."""
    sources = divide(suite, spec.targets, spec.train.seed)
    model = _own(spec) if ":" in spec.model else _of_timm(spec, suite)
    notes = {**notes_of(spec, suite), "sources": list(sources.train)}
    card = ModelCard(suite.classes, suite.pixels, suite.mean, suite.std, notes)
    return Opened(model.eval(), Erm(), card, sources, spec.resolved().train)


def _own(spec: ModelSpec) -> nn.Module:
    module, _, name = spec.model.partition(":")
    if not module or not name:
        raise DapError(f"{spec.model!r} names no model: give package.module:factory")
    if os.getcwd() not in sys.path:  # the command's own folder is there, not the user's
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise DapError(f"there is no {spec.model}: {error}") from error
    try:
        model = factory()
    except Exception as error:
        raise DapError(f"{spec.model}() fails: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise DapError(f"{spec.model} gives a {type(model).__name__}: it must give a torch.nn.Module")
    if spec.weights is not None:
        load_model(model, Path(spec.weights))
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise DapError(f"{name} of {spec.model} is {kind}: give the model in float32, with model.float()")
    return model


def _of_timm(spec: ModelSpec, suite: Suite) -> nn.Module:
    if spec.weights is None:
        raise DapError(f"{spec.model} needs weights: give a file, or train it with dap train")
    classes = len(suite.classes)
    pixels = None if spec.model == "small_resnet" else suite.pixels
    if spec.weights == "pretrained":
        model = create_classifier(spec.model, classes, "pretrained", pixels=pixels)
        fresh = getattr(model.network, "pretrained_cfg", {}).get("num_classes") != classes
    else:
        model = create_classifier(spec.model, classes, None, pixels=pixels)
        fresh = bool(load_weights(model, spec.weights).fresh)
    if fresh:
        raise DapError(
            f"the weights of {spec.model} have no head for {classes} classes: train it first, with dap train"
        )
    return model


def save_model(model: nn.Module, path: Path, card: ModelCard, *, sparse: bool = False) -> None:
    """A classifier with its card; of a user's own model the tensors, by their names in it."""
    if isinstance(model, Classifier) and model.recipe is not None:
        save_classifier(model, path, card, sparse=sparse)
        return
    if sparse:
        save_sparse(model.state_dict(), path)
        return
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    save_tensors(path, tensors)


def load_model(model: nn.Module, path: Path) -> None:
    """All tensors of the model, from a file that has them by their names."""
    tensors = read_weights(path)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise DapError(f"{path} does not fit the model: {str(error).splitlines()[1].strip()}") from None
