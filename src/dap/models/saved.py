"""A trained classifier in one safetensors file that says what it is."""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

from dap.errors import DapError
from dap.models.backbones import create_classifier
from dap.models.classifier import Classifier
from dap.models.small_resnet import small_resnet
from dap.models.sparse import FORMAT as SPARSE
from dap.models.sparse import load_sparse, save_sparse
from dap.runtime.checkpoints import checksum
from dap.runtime.files import check_readable
from dap.runtime.reading import parse_object, read_tensors, reading, require, require_types
from dap.runtime.tensors import save_tensors

_FORMAT = "dap-classifier-1"
_MOST_PIXELS = 8192  # of an image's side
_ROOM = 2**26  # bytes that buffers may take which are in no file, such as the attention masks of Swin
_NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ModelCard:
    """What a user of the classifier must know: the classes in order, and how images are prepared."""

    class_names: tuple[str, ...]
    pixels: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    notes: dict[str, Any] = field(default_factory=dict)  # anything JSON holds

    @classmethod
    def parse(cls, found: Mapping[str, Any], classes: int) -> "ModelCard":
        """A card for so many classes, from JSON. Use it inside `reading`."""
        found = {"mean": list(cls.mean), "std": list(cls.std), "notes": {}, **found}
        require_types(found, get_type_hints(cls), only=True)
        names, mean, std = (tuple(found[name]) for name in ("class_names", "mean", "std"))
        require(len(names) == classes, f"it names {len(names)} classes, and the model has {classes}")
        require(1 <= found["pixels"] <= _MOST_PIXELS, f"images have {found['pixels']} pixels, not 1 to {_MOST_PIXELS}")
        require(len(mean) == len(std) and len(std) in (1, 3), f"there are {len(mean)} means and {len(std)} deviations")
        sound = all(abs(one) < 1e6 for one in mean) and all(1e-6 < one < 1e6 for one in std)  # false for NaN
        require(sound, f"mean {mean} and std {std} do not normalise")
        return cls(names, found["pixels"], mean, std, found["notes"])


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
    with reading(path, "a classifier file", "make it again"):
        tensors, metadata = read_tensors(path)
        description = metadata.get("classifier", "")
        if metadata.get("format") == SPARSE and description:
            return _rebuild(path, load_sparse(path), description)
        _check_format(metadata.get("format", ""), path)
        if metadata.get("checksum") != _checksum(tensors, description):
            raise DapError(f"{path} is damaged (its checksum differs): make it again")
        return _rebuild(path, tensors, description)


def _check_format(found: str, path: Path) -> None:
    if found == _FORMAT:
        return
    if found.startswith("dap-classifier-"):
        raise DapError(f"{path} has format {found}, this version reads {_FORMAT}: update dap")
    raise DapError(f"{path} was not written by save_classifier: read other weights with load_weights(model, path)")


def _rebuild(path: Path, tensors: Mapping[str, Tensor], description: str) -> tuple[Classifier, ModelCard]:
    found = parse_object(description)
    require_types(found, {"recipe": dict[str, Any], "card": dict[str, Any]}, only=True)
    recipe = found["recipe"]
    create = _creator(recipe)
    card = ModelCard.parse(found["card"], recipe["classes"])
    with torch.random.fork_rng(devices=()):  # reading a file draws no random numbers
        with torch.device("meta"):  # without memory: a small file may name a large model
            outline = create()
        state = outline.state_dict()
        if {name: tensor.shape for name, tensor in state.items()} != {name: t.shape for name, t in tensors.items()}:
            raise DapError(f"{path} does not fit today's {recipe['name']}: install the timm it was made with")
        for name, tensor in tensors.items():
            expected = _NUMBERS if state[name].is_floating_point() else (state[name].dtype,)
            require(tensor.dtype in expected, f"{name} is {tensor.dtype}")
        room = sum(tensor.nbytes for tensor in tensors.values()) + _ROOM
        require(sum(buffer.nbytes for buffer in outline.buffers()) <= room, "its buffers are too large for its weights")
        model = create()
    model.load_state_dict(tensors, assign=True)  # keeps the file's precision
    return model.eval(), card


def _creator(recipe: Mapping[str, Any]) -> Callable[[], Classifier]:
    """What makes the model of a recipe from JSON."""
    require_types(recipe, {"name": str, "classes": int, "options": dict[str, Any]}, only=True)
    name, classes, options = recipe["name"], recipe["classes"], recipe["options"]
    require(classes >= 1, f"it has {classes} classes")
    if name == "small_resnet":
        require_types(options, {"width": int}, only=True)
        require(options["width"] >= 1, f"its width is {options['width']}")
        return partial(small_resnet, classes, **options)
    # With a colon or a slash, timm takes a name for an address of a hub or a folder.
    require(re.fullmatch(r"[\w.-]{1,200}", name) is not None, f"no backbone is called {name[:200]!r}")
    given = {"pixels": None, "dropout": 0.0, "stride_in_1x1": False, **options}
    require_types(given, {"pixels": int | None, "dropout": float, "stride_in_1x1": bool}, only=True)
    require(given["pixels"] is None or 1 <= given["pixels"] <= _MOST_PIXELS, f"it takes {given['pixels']} pixels")
    require(0 <= given["dropout"] <= 1, f"its dropout is {given['dropout']}")
    return partial(create_classifier, name, classes, **options)


def _checksum(tensors: Mapping[str, Tensor], description: str) -> str:
    code = zlib.crc32(description.encode())
    for name, tensor in sorted(tensors.items()):
        label = f"{name} {tensor.dtype} {tuple(tensor.shape)} {checksum(tensor)}"
        code = zlib.crc32(label.encode(), code)
    return f"{code:08x}"
