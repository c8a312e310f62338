"""dap prune: any method."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dap.config import FinetuneConfig, PruneConfig
from dap.errors import DapError
from dap.specs.methods import METHODS, SPARSITIES

if TYPE_CHECKING:
    from dap.specs.runs import ModelSpec


def prune_suite(
    dense: str,
    *,
    out: str,
    suite: str | None = None,
    weights: str | None = None,
    targets: str | None = None,
    root: str | None = None,
    pixels: int = 224,
    on_corrupt: Literal["fail", "skip"] = "fail",
    method: str = "dap",
    sparsities: str | None = None,
    allocation: str | None = None,
    finetuned: bool | None = None,
    batches: int = 50,
    prune: PruneConfig = PruneConfig(),  # noqa: B008  # frozen
    finetune: FinetuneConfig = FinetuneConfig(),  # noqa: B008  # frozen
    devices: str = "1",
    nodes: int = 1,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    threads: int | None = None,
    accelerator: str = "auto",
    oversubscribe: bool = False,
    dry_run: bool = False,
    watch_every: int | None = None,
    recalibrated: bool = False,
    raw: bool = False,
    tensorboard: bool = False,
    trust_code: bool = False,
    json: bool = False,
) -> int:
    """Prune a dense model by any method, and evaluate. The same command goes on with a run that was stopped.

    Example: dap prune runs/coral --method taylor --sparsities 0.5,0.8 --out runs/coral-taylor

    Example: dap prune mine.nets:build --suite images --targets night --out runs/mine

    Args:
        dense: the folder of a dense training; with --suite your own model, as package.module:factory, or one of timm
        suite: images for your own model: a benchmark's name, a folder <domain>/<class>/<image>, a .csv or .parquet, or
            hf:<name>
        weights: of your own model: a file or, for one of timm, pretrained
        targets: unseen domains, for evaluation, separated by commas (default: none)
        root: the folder that holds the benchmark's own (default: where the dense training had it; for your own, data)
        pixels: the side of the images for your own model
        on_corrupt: fail, or skip images that cannot be decoded, for your own model
        out: the folder for masks and result, the same for every method
        method: {methods}
        sparsities: shares of weights to cut, separated by commas (default: 0.2,0.4,0.6,0.8,0.9; {shares}, of FLOPs
            0.3,0.5,0.7)
        allocation: global, per_layer, erk, channels, global_channels, a pattern such as 2:4, flops or flops_uniform
            (whole coupled channels that dap export removes; a sparsity is then the share of FLOPs to cut) or,
            for {learns}, path (masks that learning passed through); default: the method's own
        finetuned: train on after pruning, masks fixed (default: for {finetuned}, which are defined with it)
        batches: of each source domain that {looks} look at
        prune: of mask learning; its masked weights, batch size and seed are for every method
        finetune: of fine-tuning and {trains}
        devices: processes on this machine, one for each device; auto for all
        nodes: machines
        precision: 32-true, or bf16-mixed
        threads: of torch, on which the last bits depend (default: as many as it takes)
        accelerator: auto, cpu or gpu
        oversubscribe: allow more processes on CPUs than this machine has cores
        dry_run: time a few steps, and say how long it will take and what it needs
        watch_every: steps of mask learning between looks at held-out and unseen images, for curves
        recalibrated: estimate the statistics of norm layers again after pruning, on source images; weights stay
        raw: keep and evaluate the paper's masks of single steps, too, beside the averaged ones
        tensorboard: draw curves in <out>/tensorboard, for tensorboard --logdir
        trust_code: let the run in <dense> fetch its images from a hub; your own model, named here, is imported anyway
        json: print the result as one JSON object

    Returns:
        0 if pruning is finished, 130 if Ctrl-C stopped it
    """
    from json import dumps

    from dap.runtime.files import check_folder
    from dap.specs.runs import PruneSpec

    spec = PruneSpec(
        _dense(dense, suite, weights, targets, root, pixels, on_corrupt),
        method,
        None if sparsities is None else _numbers("sparsities", sparsities),
        allocation,
        finetuned,
        batches,
        prune,
        finetune,
        threads,
        precision,
        watch_every,
        recalibrated,
        raw,
        root if suite is None else None,
    )
    spec.resolved()  # refuses wrong values before torch is imported, which takes seconds
    check_folder(out)
    from dap.cli.dry_run import dry_run as rehearse
    from dap.runs import prune_dense
    from dap.runs.curves import tensorboard as curves
    from dap.runtime.engine import launch
    from dap.runtime.progress import stages

    engine = launch(devices, nodes, precision, accelerator, oversubscribe)
    if dry_run:
        return rehearse(spec, json, engine, trust_code)
    with curves(out, tensorboard and engine.first), stages(quiet=not engine.first) as advance:
        result = prune_dense(spec, out, engine=engine, on_step=lambda news: advance(*news[:4]), trust_code=trust_code)
    if not engine.first:
        return 0
    if json:
        print(dumps(result))
        return 0
    rows = [("dense", result["dense"]), *(("sparsity", row) for row in result["sparse"].values())]
    rows += [("raw", row) for row in result.get("raw", {}).values()]
    for name, row in rows:
        shown = f"{name} {row['sparsity']:.1%}" if "sparsity" in row else name
        shown = f"FLOPs −{1 - row['flops']:.1%}" if "flops" in row else shown
        validation = sum(row["validation"].values()) / len(row["validation"])
        unseen = ", ".join(f"{target} {scores['all']:.1%}" for target, scores in row["targets"].items())
        print(f"{shown:14}  sources' validation {validation:.1%}, unseen {unseen}")
    print(f"{result['title']}, saved in {out}")
    return 0


def _with(trait: str) -> str:
    """The methods that have it."""
    return " and ".join(name for name, method in METHODS.items() if getattr(method, trait) and not method.whole)


prune_suite.__doc__ = str(prune_suite.__doc__).format(
    methods=", ".join(f"{name} ({method.title})" for name, method in METHODS.items()),
    shares=", ".join(
        f"for {name} {','.join(map(str, method.shares))}"
        for name, method in METHODS.items()
        if method.shares != SPARSITIES
    ),
    **{trait: _with(trait) for trait in ("learns", "trains", "looks", "finetuned")},
)


def _dense(
    dense: str,
    suite: str | None,
    weights: str | None,
    targets: str | None,
    root: str | None,
    pixels: int,
    on_corrupt: Literal["fail", "skip"],
) -> "ModelSpec | str":
    from dap.specs.runs import ModelSpec

    if suite is None:
        if weights is not None or targets is not None or pixels != 224 or on_corrupt != "fail":
            names = "weights, targets, pixels and on-corrupt"
            raise DapError(f"{names} are for a model of your own: give its images with --suite")
        return str(Path(dense))
    names = tuple(name.strip() for name in targets.split(",")) if targets else ()
    return ModelSpec(dense, suite, names, root=root, pixels=pixels, on_corrupt=on_corrupt, weights=weights)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise DapError(f"{name} is {text!r}; give numbers separated by commas, such as 0.5,0.8") from None
