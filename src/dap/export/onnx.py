"""ONNX files that say how images are prepared and what the classes are called, checked before they are there."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.export.logits import Logits, difference, exporting
from dap.files import replacing
from dap.models import ModelCard

_CARD = ("class_names", "pixels", "mean", "std")  # what travels in the file's metadata
_CHECKSUM = "checksum"


def export_onnx(
    model: nn.Module, path: str | Path, card: ModelCard, images: Tensor, reference: nn.Module | None = None
) -> float:
    """Write `model` for batches of any size. It is run on `images`, normalised, in ONNX Runtime, alone and together.

    Returns the largest difference from the logits of `reference` in PyTorch, by default the model itself. A file that
    differs by more than rounding is not written.
    """
    package("onnx")
    package("onnxscript")
    with exporting():
        program = torch.onnx.export(
            Logits(model),
            (torch.cat([images[:1]] * 2),),  # a batch of one would be taken for a constant
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    found = program.model_proto
    for part in (found.graph, *found.graph.node, *found.graph.value_info):
        part.ClearField("metadata_props")  # traces with folders of this machine
    with replacing(path) as temporary:
        write_onnx(found, {name: json.dumps(getattr(card, name)) for name in _CARD}, temporary)
        session = open_onnx(temporary)
        return difference(
            lambda some: torch.from_numpy(session.run(some.numpy())), reference or model, images, "in ONNX Runtime"
        )


def write_onnx(model: Any, properties: Mapping[str, str], path: Path) -> None:
    """An ONNX model with these properties, and a checksum of all that counts."""
    said = {name: text for name, text in properties.items() if name != _CHECKSUM}
    package("onnx").helper.set_model_props(model, {**said, _CHECKSUM: _checksum(model, said)})
    path.write_bytes(model.SerializeToString())


def _checksum(model: Any, properties: Mapping[str, str]) -> str:
    """Of weights, operations and properties: no reader is needed that knows how the whole was written."""
    code = zlib.crc32(json.dumps(dict(properties), sort_keys=True).encode())
    for part in (*model.graph.initializer, *model.graph.node, *model.graph.input, *model.graph.output):
        code = zlib.crc32(part.SerializeToString(deterministic=True), code)
    return f"{code:08x}"


class Session:
    """An ONNX model in ONNX Runtime, with its card."""

    def __init__(self, path: Path, threads: int | None = None):
        runtime = package("onnxruntime")
        options = runtime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        _refuse_damaged(path)
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of many types, for damaged files
            raise DapError(f"{path} is damaged or not an ONNX file ({str(error).splitlines()[0]})") from None
        self._input = self._session.get_inputs()[0]
        self.properties: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.path = path

    @property
    def channels(self) -> int:
        return self._input.shape[1]

    @property
    def card(self) -> ModelCard:
        """What `export_onnx` wrote."""
        if absent := [name for name in _CARD if name not in self.properties]:
            raise DapError(f"{self.path} does not say {', '.join(absent)}: export it with dap")
        try:
            found = {name: json.loads(self.properties[name]) for name in _CARD}
        except ValueError:
            raise DapError(f"{self.path} is damaged: what it says of its images cannot be read") from None
        return ModelCard(
            tuple(found["class_names"]), found["pixels"], mean=tuple(found["mean"]), std=tuple(found["std"])
        )

    def run(self, images: np.ndarray) -> np.ndarray:
        """Logits [n, classes] of normalised images [n, c, h, w]."""
        return self._session.run(None, {self._input.name: images})[0]


def _refuse_damaged(path: Path) -> None:
    """A file of ours is what it was; others are taken as they are."""
    onnx = package("onnx")
    try:
        model = onnx.load(path)
    except Exception as error:  # of many types
        raise DapError(f"{path} is damaged or not an ONNX file ({str(error).splitlines()[0]})") from None
    said = {entry.key: entry.value for entry in model.metadata_props}
    if _CHECKSUM in said and said.pop(_CHECKSUM) != _checksum(model, said):
        raise DapError(f"{path} is damaged (its checksum differs): export it again")


def open_onnx(path: str | Path, threads: int | None = None) -> Session:
    if not Path(path).is_file():
        raise DapError(f"no ONNX file at {path}")
    return Session(Path(path), threads)


def package(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise DapError(f"ONNX needs {name}: pip install 'dap[deploy]'") from None
