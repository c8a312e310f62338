"""Weights from local files, in the dialects of timm, torchvision, DomainBed and this library."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dap.errors import DapError
from dap.models.classifier import Classifier
from dap.models.sparse import FORMAT as SPARSE
from dap.models.sparse import load_sparse
from dap.runtime.files import check_readable, expanded
from dap.runtime.reading import read_tensors, reading, require

_WRAPPERS = ("state_dict", "model_dict", "model")
_PREFIXES = re.compile(r"^(?:module\.|_orig_mod\.)+")  # left by DistributedDataParallel and torch.compile
_DOMAINBED = "featurizer."


class LoadReport(NamedTuple):
    """Names in the network: loaded from the file, and left as they were; and names in the file that had no use."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


def load_weights(model: Classifier, path: str | Path) -> LoadReport:
    """Load a `.safetensors` file or a checkpoint of `torch.save` into the model, all of it or nothing.

    Only the head may stay as it is: where the file has none, or one for another number of classes.

    >>> from dap.models import small_resnet
    >>> torch.save(small_resnet(7).network.state_dict(), tmp / "seven-classes.pth")
    >>> load_weights(small_resnet(2), tmp / "seven-classes.pth").fresh
    ('head.weight', 'head.bias')
    """
    path = Path(path)
    own = model.network.state_dict()
    found = _plain_names(read_weights(path), model.head_name, path)
    head = [name for name in own if name.startswith(f"{model.head_name}.")]
    if not all(name in found and found[name].shape == own[name].shape for name in head):
        own = {name: tensor for name, tensor in own.items() if name not in head}

    # Files from before PyTorch 0.4.1 lack the counters, which nothing here reads.
    missing = [name for name in own if name not in found and not name.endswith("num_batches_tracked")]
    shared = [name for name in own if name in found]
    differ = [
        f"{name} {tuple(found[name].shape)} instead of {tuple(own[name].shape)}"
        for name in shared
        if found[name].shape != own[name].shape
    ]
    integers = [name for name in shared if own[name].is_floating_point() and not found[name].is_floating_point()]
    for problem, names in {"it lacks": missing, "it has": differ, "no floating-point numbers in": integers}.items():
        if names:
            raise DapError(f"{path} does not fit {model.name}: {problem} {_few(names)}; choose its own architecture")
    model.network.load_state_dict({name: found[name] for name in shared}, strict=False)
    unused = tuple(name for name in found if name not in own)
    return LoadReport(tuple(shared), tuple(name for name in head if name not in own), unused)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or a checkpoint of `torch.save`."""
    path = expanded(path)
    if not path.is_file():
        raise DapError(f"no weights at {path}: give a .safetensors or .pth file")
    check_readable(path)
    if path.suffix == ".safetensors":
        with reading(path, "a safetensors file", "fetch or make it again"):
            tensors, metadata = read_tensors(path)
        return load_sparse(path) if metadata.get("format") == SPARSE else tensors
    content = _read_pickled(path)
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise DapError(f"{path} holds no state dict: save model.state_dict() with torch.save")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if odd := [name for name, tensor in tensors.items() if tensor.layout != torch.strided or tensor.is_quantized]:
        raise DapError(f"{path} has sparse or quantised tensors ({_few(odd)}): save plain ones")
    return tensors


def _read_pickled(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with reading(path, "a checkpoint of torch.save", "fetch or make it again"), zipfile.ZipFile(path) as archive:
            # torch.save does not compress. What is compressed may become a thousand times as large.
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
            require(not packed, "its parts are compressed")
    try:
        # Never without weights_only: a pickle can run any code.
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files give errors of many types
        if forbidden := re.search(r"GLOBAL (\S+)", str(error)):
            raise DapError(
                f"{path} holds {forbidden[1]} objects, which only unsafe loading can read: save its state dict alone, "
                f"as in torch.save(checkpoint['model_dict'], …) for DomainBed, where you trust its origin"
            ) from None
        raise DapError(f"{path} is damaged or not a checkpoint of torch.save: fetch or make it again") from None


def _plain_names(tensors: Mapping[str, Tensor], head: str, path: Path) -> dict[str, Tensor]:
    """The tensors under the network's own names."""
    tensors = {_PREFIXES.sub("", name): tensor for name, tensor in tensors.items()}
    if any(name.startswith(_DOMAINBED) for name in tensors):
        return _from_domainbed(tensors, head, path)
    if all(name.startswith("network.") for name in tensors):
        return {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def _from_domainbed(tensors: Mapping[str, Tensor], head: str, path: Path) -> dict[str, Tensor]:
    if any(re.match(r"classifier\.\d", name) for name in tensors):
        raise DapError(
            f"{path} has DomainBed's nonlinear classifier of several layers, and a classifier here has one linear "
            f"head: train it with nonlinear_classifier=False"
        )
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith("network."):
            continue  # the same featurizer and classifier once more, in sequence
        name = name.removeprefix(_DOMAINBED + "network.")
        renamed[re.sub(r"^classifier\.", f"{head}.", name)] = tensor
    return renamed


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
