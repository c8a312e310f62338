"""Models as files that others can use, and what they cost where they run."""

from dap.export.costs import compare_costs
from dap.export.int8 import quantise_onnx
from dap.export.latency import compare as compare_latencies
from dap.export.onnx import Session, export_onnx, open_onnx
from dap.export.patterns import check_pattern, semi_structured_layers, to_semi_structured
from dap.export.programs import export_program
from dap.models.sparse import load_sparse, save_sparse

__all__ = [
    "Session",
    "check_pattern",
    "compare_costs",
    "compare_latencies",
    "export_onnx",
    "export_program",
    "load_sparse",
    "open_onnx",
    "quantise_onnx",
    "save_sparse",
    "semi_structured_layers",
    "to_semi_structured",
]
