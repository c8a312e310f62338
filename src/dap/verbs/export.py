"""dap export: a model of a run as a file of its own."""


def export_model(
    run: str, *, out: str, sparsity: str | None = None, dense: str | None = None, json: bool = False
) -> int:
    """Write a model of a run to one safetensors file: plain tensors, zeros in place, that load without dap.

    Example: dap export runs/coral-dap --sparsity 0.8 --out model.safetensors

    Args:
        run: the folder of a dense training or of a pruning
        out: the file
        sparsity: of a pruning, the sparsity or the pattern that was asked for
        dense: where the dense training is now, if it was moved
        json: print one JSON object

    Returns:
        0
    """
    from json import dumps
    from pathlib import Path

    from dap.dense import load_dense
    from dap.errors import DapError
    from dap.runs import load_pruned
    from dap.runs.opening import save_model
    from dap.runs.subjects import model_names

    if Path(out).is_dir():
        raise DapError(f"{out} is a folder: name the file in it")
    names = model_names(Path(run))
    if names == ["dense"]:
        if sparsity is not None:
            raise DapError(f"{run} is a dense training: leave the sparsity out")
        model, _, card = load_dense(run)
    elif sparsity is None and len(names) > 1:
        raise DapError(f"{run} has several models: choose one with --sparsity {', '.join(names)}")
    else:
        model, _, card = load_pruned(run, sparsity or names[0], dense)
    save_model(model, Path(out), card)
    weights = sum(parameter.numel() for parameter in model.parameters())
    zeros = sum(int((parameter == 0).sum()) for parameter in model.parameters())
    size = Path(out).stat().st_size
    if json:
        print(dumps({"file": out, "bytes": size, "parameters": weights, "zeros": zeros}))
    else:
        print(f"{out}: {size:,} bytes, {weights:,} parameters, {zeros:,} of them 0")
    return 0
