"""ONNX files that say how images are prepared and what the classes are called, checked before they are there."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.export.logits import Logits
from dap.files import replacing
from dap.models import ModelCard

_CARD = ("class_names", "pixels", "mean", "std")  # what travels in the file's metadata
TOLERANCE = 1e-3  # of logits, whose rounding depends on the order of sums


def export_onnx(model: nn.Module, path: str | Path, card: ModelCard, images: Tensor) -> float:
    """Write `model` for batches of any size. It is run on `images`, normalised, in ONNX Runtime, alone and together.

    Returns the largest difference from PyTorch's logits. A model that differs by more than rounding is not written.
    """
    onnx = package("onnx")
    package("onnxscript")
    model = Logits(model).float().eval()
    with torch.no_grad():
        expected = model(images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        program = torch.onnx.export(
            model,
            (images[:1].repeat(2, 1, 1, 1),),  # a batch of one would be taken for a constant
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
    onnx.helper.set_model_props(found, {name: json.dumps(getattr(card, name)) for name in _CARD})
    with replacing(path) as temporary:
        temporary.write_bytes(found.SerializeToString())
        session = open_onnx(temporary)
        together, alone = session.run(images.numpy()), session.run(images[:1].numpy())
        difference = max(_distance(together, expected), _distance(alone, expected[:1]))
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise DapError(f"in ONNX Runtime the model differs by {difference:.3g} from PyTorch: it was not written")
    return difference


def _distance(ours: np.ndarray, expected: Tensor) -> float:
    return float(np.abs(ours - expected.numpy()).max())


class Session:
    """An ONNX model in ONNX Runtime, with its card."""

    def __init__(self, path: Path, threads: int | None = None):
        runtime = package("onnxruntime")
        options = runtime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
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
        found = {name: json.loads(text) for name, text in self.properties.items() if name in _CARD}
        return ModelCard(
            tuple(found["class_names"]), found["pixels"], mean=tuple(found["mean"]), std=tuple(found["std"])
        )

    def run(self, images: np.ndarray) -> np.ndarray:
        """Logits [n, classes] of normalised images [n, c, h, w]."""
        return self._session.run(None, {self._input.name: images})[0]


def open_onnx(path: str | Path, threads: int | None = None) -> Session:
    if not Path(path).is_file():
        raise DapError(f"no ONNX file at {path}")
    return Session(Path(path), threads)


def package(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise DapError(f"ONNX needs {name}: pip install 'dap[deploy]'") from None
