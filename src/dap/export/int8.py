"""ONNX files in 8-bit integers: about a quarter of the size, and faster where convolutions are large."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.export.onnx import Session, open_onnx, package, write_onnx
from dap.runtime.files import replacing

# Products, and what can stay in integers between them. Sums stay in float: what a transformer adds up over its blocks
# has too wide a range for 8 bits, and sums in integers make a convolutional network no faster.
_OPERATORS = ("Conv", "Gemm", "MatMul", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool")


def quantise_onnx(path_in: str | Path, path_out: str | Path, calibration: Iterable[np.ndarray | Tensor]) -> float:
    """Write a file of `export_onnx` with weights of 8 bits, one scale per channel, and activations of 8 bits.

    `calibration`: batches of normalised images [n, c, h, w] of source domains; activations get the ranges seen there.
    Returns the share of these images that both files put into the same class. What it costs on others is the
    difference in `accuracy(Runtime(open_onnx(path)), images)`.
    """
    onnx = package("onnx")
    package("onnxruntime.quantization")
    try:
        session = open_onnx(path_in)
    except DapError as error:
        raise DapError(f"{error}: export the model again") from None
    batches = [_array(batch) for batch in calibration if len(batch)]
    if not batches:
        raise DapError("no images for calibration: give some of every source domain")
    before = _classes(session, batches)
    with TemporaryDirectory() as folder:
        found = onnx.load(_quantised(Path(path_in), batches, Path(folder)))
    with replacing(path_out) as temporary:
        write_onnx(found, session.properties, temporary)  # without what the quantiser added
        return float((_classes(open_onnx(temporary), batches) == before).mean())


class Runtime(nn.Module):
    """An ONNX model as a module without parameters, on the CPU, that is evaluated like any other."""

    def __init__(self, session: Session):
        super().__init__()
        self.session = session

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(images.numpy()))


def _array(batch: np.ndarray | Tensor) -> np.ndarray:
    if not isinstance(batch, np.ndarray | Tensor):
        raise DapError(f"a batch for calibration is a {type(batch).__name__}: give images alone, [n, c, h, w]")
    return torch.as_tensor(batch).detach().float().cpu().numpy()


def _classes(session: Session, batches: list[np.ndarray]) -> np.ndarray:
    try:
        return np.concatenate([session.run(batch).argmax(1) for batch in batches])
    except Exception as error:  # of many types, for images of another shape
        why = str(error).splitlines()[0]
        raise DapError(f"{session.path} does not take these images ({why}): prepare them as its card says") from None


def _quantised(path: Path, batches: list[np.ndarray], folder: Path) -> Path:
    onnx, quantisation = package("onnx"), package("onnxruntime.quantization").quantization
    prepared, written = folder / "prepared.onnx", folder / "quantised.onnx"
    with _quiet():
        quantisation.quant_pre_process(path, prepared, skip_symbolic_shape=True)
        graph = onnx.load(prepared).graph
        if any(node.op_type == "QuantizeLinear" for node in graph.node):
            raise DapError(f"{path} is in integers already: give the file that export_onnx wrote")
        quantisation.quantize_static(
            prepared,
            written,
            _Feed(graph.input[0].name, batches),
            quant_format=quantisation.QuantFormat.QDQ,
            op_types_to_quantize=list(_OPERATORS),
            nodes_to_exclude=_attention(graph),
            per_channel=True,
            weight_type=quantisation.QuantType.QInt8,
            activation_type=quantisation.QuantType.QUInt8,  # on x86, int8 is hardly faster than float
            reduce_range=True,  # weights of 7 bits: without VNNI, sums of two products of 8 bits saturate
        )
    return written


def _attention(graph: Any) -> list[str]:
    """Products of two activations, by name. A softmax between them would be taken for one of integers, whose kernel in
    ONNX Runtime 1.31 gives 0 for chances that are all small.
    """
    weights = {weight.name for weight in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and not weights.intersection(node.input)]


class _Feed:
    """One batch after the other as ONNX Runtime's calibration asks for them, then None."""

    def __init__(self, name: str, batches: list[np.ndarray]):
        self._feeds = ({name: batch} for batch in batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser tells the root logger of channels that are nearly dead, and gives it a handler if it has none."""
    root, silent, level = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(silent)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        root.removeHandler(silent)
