"""Models as files that others can use."""

from dap.export.onnx import Session, export_onnx, open_onnx
from dap.export.programs import export_program
from dap.models.sparse import load_sparse, save_sparse

__all__ = ["Session", "export_onnx", "export_program", "load_sparse", "open_onnx", "save_sparse"]
