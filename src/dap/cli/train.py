"""dap train: dense training."""

from typing import Any, Literal

from dap.config import TrainConfig


def train_suite(
    suite: str,
    *,
    targets: str,
    out: str,
    root: str | None = None,
    pixels: int = 224,
    on_corrupt: Literal["fail", "skip"] = "fail",
    backbone: str = "resnet50",
    weights: str | None = "pretrained",
    dropout: float = 0.0,
    stride_in_1x1: bool = False,
    objective: str = "erm",
    options: dict[str, Any] | None = None,
    train: TrainConfig = TrainConfig(),  # noqa: B008  # frozen
    devices: str = "1",
    nodes: int = 1,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    threads: int | None = None,
    accelerator: str = "auto",
    oversubscribe: bool = False,
    dry_run: bool = False,
    tensorboard: bool = False,
    json: bool = False,
) -> int:
    """Train a dense model under DomainBed's protocol. The same command goes on with a run that was stopped.

    Example: dap train PACS --root data --targets sketch --objective coral --out runs/coral

    Args:
        suite: a benchmark's name, a folder <domain>/<class>/<image>, a .csv or .parquet, or hf:<name>
        targets: the unseen domain; two of them, separated by a comma, to select by leaving one domain out
        out: the folder for model, objective and result
        root: the folder that holds the benchmark's own (default: data)
        pixels: the side of the images
        on_corrupt: what to do about images that cannot be read
        backbone: small_resnet, or a model of timm
        weights: pretrained (from the hub), a file, or null for random ones (then with --train.freeze_norms false)
        dropout: before the last layer
        stride_in_1x1: for a ResNet's original weights, see docs/models.md
        objective: erm, irm, group_dro, mixup, mldg, coral, mmd, dann, cdann or miro
        options: of the objective, as --options.weight 0.5
        train: steps, learning rate and so on; its seed also draws the splits
        devices: processes on this machine, one for each device; auto for all
        nodes: machines
        precision: 32-true, or bf16-mixed
        threads: of torch, on which the last bits depend (default: as many as it takes)
        accelerator: auto, cpu or gpu
        oversubscribe: allow more processes on CPUs than this machine has cores
        dry_run: time a few steps, and say how long it will take and what it needs
        tensorboard: draw curves in <out>/tensorboard, for tensorboard --logdir
        json: print the result as one JSON object

    Returns:
        0 if training is finished, 130 if Ctrl-C stopped it
    """
    from json import dumps

    from dap.runtime.files import check_folder
    from dap.specs.runs import TrainSpec

    names = tuple(name.strip() for name in targets.split(","))
    spec = TrainSpec(
        suite,
        names,
        root=root,
        pixels=pixels,
        on_corrupt=on_corrupt,
        backbone=backbone,
        weights=weights,
        dropout=dropout,
        stride_in_1x1=stride_in_1x1,
        objective=objective,
        options=options or {},
        train=train,
        threads=threads,
        precision=precision,
    )
    steps = spec.resolved().train.steps  # refuses wrong values before torch is imported, which takes seconds
    check_folder(out)
    from dap.cli.dry_run import dry_run as rehearse
    from dap.runs import train_dense
    from dap.runs.curves import tensorboard as curves
    from dap.runtime.engine import launch
    from dap.runtime.progress import progress

    engine = launch(devices, nodes, precision, accelerator, oversubscribe)
    if dry_run:
        return rehearse(spec, json, engine)
    with (
        curves(out, tensorboard and engine.first),
        progress("dense training", steps, quiet=not engine.first) as advance,
    ):
        result = train_dense(spec, out, engine=engine, on_step=lambda stats: advance(stats.words(), stats.step))
    if not engine.first:
        return 0
    if json:
        print(dumps(result))
    elif result["interrupted"]:
        print(f"stopped after step {result['steps']}; the same command goes on from there")
    else:
        print(f"step {result['selected']}, sources' validation: {_percentages(result['score']['accuracy'])}")
        for target, scores in result["targets"].items():
            print(f"unseen {target}: {_percentages(scores)}")
        print(f"saved in {out}")
    return 130 if result["interrupted"] else 0


def _percentages(accuracies: dict[str, float]) -> str:
    return ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in accuracies.items())
