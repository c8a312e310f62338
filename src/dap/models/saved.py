"""A trained classifier in one safetensors file that says what it is."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dap.checkpoints import checksum
from dap.errors import DapError
from dap.files import check_readable
from dap.models.backbones import create_classifier
from dap.models.classifier import Classifier
from dap.models.small_resnet import small_resnet
from dap.models.sparse import FORMAT as SPARSE
from dap.models.sparse import load_sparse, save_sparse
from dap.tensors import save_tensors

_FORMAT = "dap-classifier-1"


@dataclass(frozen=True)
class ModelCard:
    """What a user of the classifier must know: the classes in order, and how images are prepared."""

    class_names: tuple[str, ...]
    pixels: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    notes: dict[str, Any] = field(default_factory=dict)  # anything JSON holds


def save_classifier(model: Classifier, path: str | Path, card: ModelCard, *, sparse: bool = False) -> None:
    """Write the classifier, whole or not at all; `sparse` leaves its zeros out (see `save_sparse`).

    >>> save_classifier(small_resnet(2), tmp / "dense.safetensors", ModelCard(("cat", "dog"), pixels=32))
    >>> load_classifier(tmp / "dense.safetensors")[1].class_names
    ('cat', 'dog')
    """
    if model.recipe is None:
        raise DapError(
            "a classifier of your own parts, or without some of its channels, cannot be rebuilt from a file: export it "
            "with its graph (dap.export), or save its state_dict() with safetensors"
        )
    if len(card.class_names) != model.classes:
        raise DapError(f"the card names {len(card.class_names)} classes, the model has {model.classes}")
    try:
        description = json.dumps({"recipe": asdict(model.recipe), "card": asdict(card)})
    except (TypeError, ValueError) as error:
        raise DapError(f"the notes hold what JSON cannot ({error}): give plain values") from None
    if sparse:
        save_sparse(model.state_dict(), path, {"classifier": description})
        return
    # Own memory for each: safetensors refuses tensors that share theirs.
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    metadata = {"format": _FORMAT, "classifier": description, "checksum": _checksum(tensors, description)}
    save_tensors(path, tensors, metadata)


def load_classifier(path: str | Path) -> tuple[Classifier, ModelCard]:
    """What `save_classifier` wrote, to the bit, in eval mode."""
    path = Path(path)
    if not path.is_file():
        raise DapError(f"no classifier file at {path}")
    check_readable(path)
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            is_sparse = metadata.get("format") == SPARSE
            names = [] if is_sparse else file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # the parser has errors of many types for damaged headers
        raise DapError(f"{path} is damaged or not a classifier file ({error}): make it again") from None
    if is_sparse and "classifier" in metadata:
        return _rebuild(path, load_sparse(path), **json.loads(metadata["classifier"]))
    found = metadata.get("format", "")
    if found != _FORMAT:
        if found.startswith("dap-classifier-"):
            raise DapError(f"{path} has format {found}, this version reads {_FORMAT}: update dap")
        raise DapError(f"{path} was not written by save_classifier: read other weights with load_weights(model, path)")
    description = metadata.get("classifier", "")
    if metadata.get("checksum") != _checksum(tensors, description):
        raise DapError(f"{path} is damaged (its checksum differs): make it again")
    return _rebuild(path, tensors, **json.loads(description))


def _rebuild(
    path: Path, tensors: Mapping[str, Tensor], recipe: dict[str, Any], card: dict[str, Any]
) -> tuple[Classifier, ModelCard]:
    create = small_resnet if recipe["name"] == "small_resnet" else partial(create_classifier, recipe["name"])
    with torch.random.fork_rng(devices=()):  # reading a file draws no random numbers
        model = create(classes=recipe["classes"], **recipe["options"])
    try:
        model.load_state_dict(tensors, assign=True)  # keeps the file's precision
    except RuntimeError:
        raise DapError(f"{path} does not fit today's {recipe['name']}: install the timm it was made with") from None
    for key in ("class_names", "mean", "std"):
        card[key] = tuple(card[key])  # JSON has lists only
    return model.eval(), ModelCard(**card)


def _checksum(tensors: Mapping[str, Tensor], description: str) -> str:
    code = zlib.crc32(description.encode())
    for name, tensor in sorted(tensors.items()):
        label = f"{name} {tensor.dtype} {tuple(tensor.shape)} {checksum(tensor)}"
        code = zlib.crc32(label.encode(), code)
    return f"{code:08x}"
