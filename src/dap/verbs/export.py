"""dap export: a model of a run as a file of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from dap.runs.subjects import Subjects

_ENDINGS = {".onnx": "onnx", ".pt2": "torch"}
_CHECKED = 8  # images of each domain


def export_model(
    run: str,
    *,
    out: str,
    format: Literal["dense", "safetensors", "onnx", "torch"] | None = None,
    sparsity: str | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    dense: str | None = None,
    root: str | None = None,
    json: bool = False,
) -> int:
    """Write a model of a run to one file.

    Example: dap export runs/coral-dap --sparsity 0.8 --out model.safetensors

    Example: dap export runs/coral-dap --sparsity 0.8 --out model.onnx

    Args:
        run: the folder of a dense training or of a pruning
        out: the file
        format: dense (a safetensors file of plain tensors, zeros in place), safetensors (the same without the zeros,
            for dap.models.load_sparse), onnx, or torch (a program of torch.export); default: by the file's ending,
            .onnx or .pt2, else dense
        sparsity: of a pruning, the sparsity or the pattern that was asked for
        dtype: of the weights in a safetensors file
        dense: where the dense training is now, if it was moved
        root: the folder that holds the suite's own, if it was moved; onnx and torch are checked on its images
        json: print one JSON object

    Returns:
        0
    """
    from json import dumps

    import torch

    from dap.errors import DapError
    from dap.export import export_onnx, export_program
    from dap.runs.opening import save_model
    from dap.runs.subjects import model_names, open_subjects

    if Path(out).is_dir():
        raise DapError(f"{out} is a folder: name the file in it")
    kind = format or _ENDINGS.get(Path(out).suffix, "dense")
    if dtype != "float32" and kind in ("onnx", "torch"):
        raise DapError(f"{kind} files hold float32: leave --dtype out")
    names = model_names(Path(run))
    if names == ["dense"] and sparsity is not None:
        raise DapError(f"{run} is a dense training: leave the sparsity out")
    if sparsity is None and len(names) > 1:
        raise DapError(f"{run} has several models: choose one with --sparsity {', '.join(names)}")
    wished = None if names == ["dense"] else (sparsity or names[0],)
    subjects = open_subjects(Path(run), wished, Path(dense) if dense else None, root)
    model = list(subjects.models.values())[-1]
    more = {}
    if kind == "onnx":
        more["difference"] = export_onnx(model, out, subjects.card, _images(subjects))
    elif kind == "torch":
        more["difference"] = export_program(model, out, _images(subjects))
    else:
        save_model(model.to(getattr(torch, dtype)), Path(out), subjects.card, sparse=kind == "safetensors")
    weights = sum(parameter.numel() for parameter in model.parameters())
    zeros = sum(int((parameter == 0).sum()) for parameter in model.parameters())
    size = Path(out).stat().st_size
    if json:
        print(dumps({"file": out, "format": kind, "bytes": size, "parameters": weights, "zeros": zeros, **more}))
        return 0
    print(f"{out}: {kind}, {size:,} bytes, {weights:,} parameters, {zeros:,} of them 0")
    if more:
        print(f"on images of every domain its logits differ by at most {more['difference']:.2g} from those of the run")
    return 0


def _images(subjects: "Subjects") -> "Tensor":
    """Some of every source domain."""
    import torch

    from dap.evaluation.pixels import Joined

    return torch.cat([next(iter(Joined([data], _CHECKED)))[0] for data in subjects.sources.held_out.values()])
