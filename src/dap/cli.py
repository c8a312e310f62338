"""The command line: one function per verb, which imports what it needs when it is called, so that help is instant."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

from dap.config import FinetuneConfig, PruneConfig, TrainConfig
from dap.errors import DapError


def data_check(suite: str, root: str | None = None, quick: bool = False, json: bool = False) -> int:
    """Compare a suite on disk with what should be there, and decode every image.

    Args:
        suite: a benchmark's name, a folder <domain>/<class>/<image>, a .csv or .parquet, or hf:<name>
        root: the folder that holds the benchmark's own (default: data)
        quick: count images, but decode none
        json: print one JSON object instead of a table

    Returns:
        0 if the suite is whole, 1 if not
    """
    from dataclasses import asdict
    from json import dumps

    from dap.data.checking import check_suite

    check = check_suite(suite, root, quick)
    if json:
        print(dumps({**asdict(check), "whole": check.whole}))
        return int(not check.whole)
    for domain, found in check.domains.items():
        expected = "" if found.expected is None else f" of {found.expected}"
        unreadable = "not decoded" if quick else f"{len(found.unreadable)} unreadable"
        print(f"{domain:20} {found.images:>7}{expected} images, {unreadable}")
    for line in [*check.notes, *check.problems]:
        print(f"- {line}")
    print(f"{check.suite} is whole" if check.whole else f"{check.suite} is not whole")
    return int(not check.whole)


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
    precision: str = "32-true",
    accelerator: str = "auto",
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
        accelerator: auto, cpu or gpu
        json: print the result as one JSON object

    Returns:
        0 if training is finished, 130 if Ctrl-C stopped it
    """
    from json import dumps

    from dap.engine import launch
    from dap.progress import progress
    from dap.runs import TrainSpec, train_dense

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
    )
    engine = launch(devices, nodes, precision, accelerator)
    config = train.resolved(suite, objective)
    with progress("dense training", config.steps, quiet=not engine.first) as advance:
        result = train_dense(
            spec, out, engine=engine, on_step=lambda stats: advance(f"loss {stats.loss:.3f}", stats.step)
        )
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


def prune_suite(
    dense: str,
    *,
    out: str,
    method: str = "dap",
    sparsities: str | None = None,
    allocation: str | None = None,
    finetuned: bool | None = None,
    batches: int = 50,
    prune: PruneConfig = PruneConfig(),  # noqa: B008  # frozen
    finetune: FinetuneConfig = FinetuneConfig(),  # noqa: B008  # frozen
    devices: str = "1",
    nodes: int = 1,
    precision: str = "32-true",
    accelerator: str = "auto",
    json: bool = False,
) -> int:
    """Prune a dense model by any method, and evaluate. The same command goes on with a run that was stopped.

    Example: dap prune runs/coral --method taylor --sparsities 0.5,0.8 --out runs/coral-taylor

    Args:
        dense: the folder of a dense training
        out: the folder for masks and result, the same for every method
        method: dap, agnostic (DAP with alpha 0), random, magnitude, taylor, wanda, movement, ior or dss
        sparsities: shares of weights to cut, separated by commas (default: 0.2,0.4,0.6,0.8,0.9)
        allocation: global, per_layer, erk, channels, global_channels, a pattern such as 2:4 or, for dap, path (masks
            that learning passed through); default: the method's own
        finetuned: train on after pruning, masks fixed (default: for ior and dss, which are defined with it)
        batches: of each source domain that taylor, wanda, ior and dss look at
        prune: of mask learning; its masked weights, batch size and seed are for every method
        finetune: of fine-tuning and movement
        devices: processes on this machine, one for each device; auto for all
        nodes: machines
        precision: 32-true, or bf16-mixed
        accelerator: auto, cpu or gpu
        json: print the result as one JSON object

    Returns:
        0 if pruning is finished, 130 if Ctrl-C stopped it
    """
    from json import dumps

    from dap.engine import launch
    from dap.progress import stages
    from dap.runs import PruneSpec, prune_dense

    spec = PruneSpec(
        dense,
        method,
        None if sparsities is None else _numbers("sparsities", sparsities),
        allocation,
        finetuned,
        batches,
        prune,
        finetune,
    )
    engine = launch(devices, nodes, precision, accelerator)
    with stages(quiet=not engine.first) as advance:
        result = prune_dense(spec, out, engine=engine, on_step=lambda news: advance(*news[:4]))
    if not engine.first:
        return 0
    if json:
        print(dumps(result))
        return 0
    for name, row in {"dense": result["dense"], **result["sparse"]}.items():
        shown = f"sparsity {row['sparsity']:.1%}" if "sparsity" in row else name
        validation = sum(row["validation"].values()) / len(row["validation"])
        unseen = ", ".join(f"{target} {scores['all']:.1%}" for target, scores in row["targets"].items())
        print(f"{shown:14}  sources' validation {validation:.1%}, unseen {unseen}")
    print(f"{result['title']}, saved in {out}")
    return 0


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise DapError(f"{name} is {text!r}; give numbers separated by commas, such as 0.5,0.8") from None


def _percentages(accuracies: dict[str, float]) -> str:
    return ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in accuracies.items())


# Each verb, of one word or two, is a function.
VERBS: dict[str, Callable[..., int]] = {"train": train_suite, "prune": prune_suite, "data check": data_check}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 for success, 1 for what a user can mend, 2 for wrong usage, 130 for Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((verb for verb in VERBS if given[: len(verb.split())] == verb.split()), None)
    if verb is None:
        return _overview(given)
    from dap.arguments import call

    try:
        return call(VERBS[verb], f"dap {verb}", given[len(verb.split()) :])
    except DapError as error:
        print(f"dap: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"dap: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dap: interrupted", file=sys.stderr)
        return 130


def _overview(given: Sequence[str]) -> int:
    """What there is, for whoever asks or has not named a verb."""
    asked = not given or given[-1] in ("-h", "--help")
    known = "\n".join(f"  dap {verb:12} {(function.__doc__ or '').splitlines()[0]}" for verb, function in VERBS.items())
    text = f"usage: dap <verb> … (dap <verb> --help for its options)\n\n{known}"
    if not asked:
        text = f"dap: there is no verb {' '.join(given[:1])!r}\n{text}"
    print(text, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2
