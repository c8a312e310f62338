"""ONNX files that say how images are prepared and what the classes are called, checked before they are there."""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.export.logits import Logits, difference, exporting
from dap.models import ModelCard
from dap.runtime.files import replacing
from dap.runtime.reading import reading, require, require_types

_CARD = ("class_names", "pixels", "mean", "std")  # what travels in the file's metadata
_CHECKSUM = "checksum"
_WHOLE = "all-"  # what a checksum of the whole begins with


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
            lambda some: torch.from_numpy(session.run(some.numpy())),
            model if reference is None else reference,
            images,
            "in ONNX Runtime",
        )


def write_onnx(model: Any, properties: Mapping[str, str], path: Path) -> None:
    """An ONNX model with these properties, and a checksum of all that counts."""
    said = {name: text for name, text in properties.items() if name != _CHECKSUM}
    package("onnx").helper.set_model_props(model, {**said, _CHECKSUM: _checksum(model, said)})
    path.write_bytes(model.SerializeToString())


def _checksum(model: Any, properties: Mapping[str, str]) -> str:
    """Of all that a reader understands."""
    graph, code = model.graph, int(_checksum_of_parts(model, properties), 16)
    rest = (model.opset_import, model.functions, model.training_info, graph.sparse_initializer, graph.value_info)
    for part in (part for parts in (*rest, graph.quantization_annotation) for part in parts):
        code = zlib.crc32(part.SerializeToString(deterministic=True), code)
    return f"{_WHOLE}{zlib.crc32(str(model.ir_version).encode(), code):08x}"


def _checksum_of_parts(model: Any, properties: Mapping[str, str]) -> str:
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
        self.verified = _check(path)  # against the checksum in it
        with reading(path, "an ONNX file", "export it again"):
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self._input, self._output = (ends[0] for ends in (self._session.get_inputs(), self._session.get_outputs()))
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
        with reading(self.path, "an ONNX file of dap", "export it again"):
            found = {name: json.loads(self.properties[name]) for name in _CARD}
            inputs, outputs = self._input.shape, self._output.shape
            require(len(inputs) == 4 and len(outputs) == 2, f"it maps {inputs} to {outputs}, not images to logits")
            require(inputs[1] in (1, 3), f"it takes images of {inputs[1]} channels")
            card = ModelCard.parse(found, outputs[1])
            require(inputs[2:] == [card.pixels] * 2, f"it takes images of {inputs[2:]}, not of {card.pixels} pixels")
            return card

    def run(self, images: np.ndarray) -> np.ndarray:
        """Logits [n, classes] of normalised images [n, c, h, w]."""
        try:
            logits = np.asarray(self._session.run(None, {self._input.name: images})[0])
        except Exception as error:  # of many types
            why = str(error).splitlines()[0]
            raise DapError(f"{self.path} cannot be run on images {images.shape} ({why}): export it again") from None
        if logits.dtype.kind != "f" or logits.shape != (len(images), *self._output.shape[1:]):
            raise DapError(f"{self.path} gives {logits.dtype} {logits.shape}, not logits: export it again")
        return logits


def _check(path: Path) -> bool:
    """Whether the file has a checksum, which is then right; others are taken as they are."""
    onnx = package("onnx")
    with reading(path, "an ONNX file", "export it again"):
        model = onnx.load(path, load_external_data=False)
        require(not any(map(onnx.external_data_helper.uses_external_data, _tensors(model))), "weights are elsewhere")
        said = {entry.key: entry.value for entry in model.metadata_props}
        require(len(said) == len(model.metadata_props), "it says the same thing twice")
        require_types(said, dict.fromkeys(said, str))
        if (given := said.pop(_CHECKSUM, None)) is None:
            return False
        # Earlier versions left out what is beside weights and operations.
        if given != (_checksum(model, said) if given.startswith(_WHOLE) else _checksum_of_parts(model, said)):
            raise DapError(f"{path} is damaged (its checksum differs): export it again")
        return True


def _tensors(message: Any) -> Iterator[Any]:
    """All of them in a model, wherever they are."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                if field.message_type.name == "TensorProto":
                    yield part
                yield from _tensors(part)


def open_onnx(path: str | Path, threads: int | None = None) -> Session:
    if not Path(path).is_file():
        raise DapError(f"no ONNX file at {path}")
    return Session(Path(path), threads)


def package(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise DapError(f"ONNX needs {name}: pip install 'dap[deploy]'") from None
