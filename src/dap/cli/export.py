"""dap export: a model of a run as a file of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dap.errors import DapError

if TYPE_CHECKING:
    from dap.export.wishes import Wish

_ENDINGS = {".onnx": "onnx", ".pt2": "torch"}


def export_model(
    run: str,
    *,
    out: str,
    format: Literal["dense", "safetensors", "onnx", "torch"] | None = None,
    sparsity: str | None = None,
    target_sparsity: float | None = None,
    target_latency: str | None = None,
    max_size: str | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    int8: bool = False,
    threads: int | None = None,
    dense: str | None = None,
    root: str | None = None,
    trust_code: bool = False,
    json: bool = False,
) -> int:
    """Write a model of a run to one file.

    Example: dap export runs/coral-dap --sparsity 0.8 --out model.safetensors

    Example: dap export runs/coral-channels --target-latency 0.5x --out model.onnx

    Args:
        run: the folder of a dense training or of a pruning
        out: the file
        format: dense (a safetensors file of plain tensors, zeros in place), safetensors (the same without the zeros,
            for dap.models.load_sparse), onnx, or torch (a program of torch.export); default: by the file's ending,
            .onnx or .pt2, else dense
        sparsity: of a pruning, the sparsity or the pattern that was asked for
        target_sparsity: any up to the highest of the pruning; of whole channels, the share of FLOPs to cut
        target_latency: cut no more than this needs, in ONNX Runtime on one image: 0.5x of the dense model's, or 30ms
        max_size: cut no more than a file of this size needs: 20MB
        dtype: of the weights in a safetensors file
        int8: of an ONNX file, weights and activations in 8 bits, calibrated on training images of the sources
        threads: for latencies (default: as many as there are cores)
        dense: where the dense training is now, if it was moved
        root: the folder that holds the suite's own, if it was moved; onnx and torch are checked on its images
        trust_code: import the code that makes the run's model, and fetch its images from a hub, if it names them
        json: print one JSON object

    Returns:
        0
    """
    from json import dumps

    from dap.config import check_counts
    from dap.runtime.files import check_file, check_there

    check_file(out)
    check_counts(threads=threads)
    if sum(wish is not None for wish in (sparsity, target_sparsity, target_latency, max_size)) > 1:
        raise DapError("choose one of --sparsity, --target-sparsity, --target-latency and --max-size")
    kind = format or _ENDINGS.get(Path(out).suffix, "dense")
    if dtype != "float32" and kind in ("onnx", "torch"):
        raise DapError(f"{kind} files hold float32: leave --dtype out")
    if int8 and kind != "onnx":
        raise DapError(f"--int8 is for ONNX files, not for {kind}: name the file model.onnx")
    check_there(run, "the folder of a run")
    import torch

    from dap.runs.shipping import ship
    from dap.runtime.progress import stages

    wish = _wish(sparsity, target_sparsity, target_latency, max_size)
    with stages(quiet=json) as tell:
        found = ship(
            Path(run),
            Path(out),
            kind,
            wish,
            dtype=getattr(torch, dtype),
            int8=int8,
            threads=threads,
            dense=Path(dense) if dense else None,
            root=root,
            trust_code=trust_code,
            tell=tell,
        )
    print(dumps(found) if json else "\n".join(_lines(found)))
    return 0


def _wish(
    sparsity: str | None, target_sparsity: float | None, target_latency: str | None, max_size: str | None
) -> "Wish | str | None":
    from dap.export.wishes import Wish, parse_latency, parse_size

    if target_sparsity is not None:
        return Wish("sparsity", target_sparsity)
    if target_latency is not None:
        return parse_latency(target_latency)
    return sparsity if max_size is None else parse_size(max_size)


def _lines(found: dict[str, Any]) -> list[str]:
    """For people: what is in the file, and a table of what it costs before (dense) and after."""
    zeros = f", {found['zeros']:,} of them 0" if found["zeros"] else ""
    lines = [f"{found['file']}: {found['format']}, {found['bytes']:,} bytes, {found['parameters']:,} parameters{zeros}"]
    if "difference" in found:
        before = "before quantisation " if "float" in found.get("validation", {}) else ""
        much = f"{found['difference']:.2g}"
        lines.append(f"{before}its logits on images of every domain differ by at most {much} from those of the run")
    if "pattern" in found:
        lines.append(f"every masked weight follows the pattern {found['pattern']}")
    if "on a GPU" in found:
        lines.append(found["on a GPU"])
    if "cut" in found:
        lines.append(f"{found['cut']['share']:.1%} of the {found['cut']['of']} are cut")
    rows: dict[str, dict[str, str]] = {}
    if "costs" in found:
        costs = found["costs"].items()
        rows["parameters"] = {name: f"{cost['parameters'] / 1e6:.3g} M" for name, cost in costs}
        rows["FLOPs"] = {name: f"{cost['flops'] / 1e9:.3g} G" for name, cost in costs}
        for title, key in {"PyTorch": "torch_seconds", "ONNX Runtime": "onnx_seconds"}.items():
            rows[title] = {name: f"{1000 * cost[key]:.3g} ms" for name, cost in costs if cost[key] is not None}
    if "validation" in found:
        rows["sources' validation"] = {name: f"{value:.1%}" for name, value in found["validation"].items()}
    columns = [name for name in ("dense", "float", "file") if any(name in row for row in rows.values())]
    if columns:
        lines.append(f"{'':20}" + "".join(f"{name:>11}" for name in columns))
        lines += [
            f"{title:20}" + "".join(f"{row.get(name, ''):>11}" for name in columns)
            for title, row in rows.items()
            if row
        ]
    return lines
