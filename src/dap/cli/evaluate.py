"""dap evaluate: how well models do, domain by domain, and what they withstand."""

import sys
from pathlib import Path
from typing import Any

from dap.specs.attacks import ATTACKS, OPTIONS, taking


def evaluate_models(
    run: str,
    sparsity: str | None = None,
    attacks: str | None = None,
    severities: str = "1,2,3,4,5",
    restarts: int = 1,
    random_start: bool = True,
    seed: int = 0,
    corruptions: bool = False,
    images: int | None = None,
    per_side: bool = False,
    interpret: bool = False,
    accelerator: str = "auto",
    dense: str | None = None,
    root: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    trust_code: bool = False,
    json: bool = False,
) -> int:
    """Evaluate the models of a run on every domain of its suite: accuracy, calibration, worst class and domain.

    Example: dap evaluate runs/coral-dap --sparsity 0.8

    Example: dap evaluate runs/coral-dap --sparsity 0.8 --attacks fgsm,pgd --corruptions --interpret --out robustness

    Args:
        run: the folder of a dense training or of a pruning, or the file of a classifier
        sparsity: of a pruning, the sparsities or the pattern that were asked for, separated by commas (default: all)
        attacks: {attacks}, separated by commas
        severities: of attacks, separated by commas: 0.5, 1, 2, 4 and 8/255
        restarts: of {restarts}; the worst counts
        random_start: of {random_start}
        seed: of {seed}
        corruptions: the 15 of ImageNet-C, each at five severities
        images: of each domain, for attacks and corruptions (default: all)
        per_side: so many of all sources together, and of all unseen domains
        interpret: logits, layers, overlap of masks, and where the models look
        accelerator: auto, cpu or gpu
        dense: where the dense training is now, if it was moved
        root: the folder that holds the suite's own, if it was moved
        out: a folder for the result, tables and figures (default: with attacks, corruptions or interpret
            <run>/evaluation-<id>, else nothing is kept)
        dry_run: evaluate a few images, and say how long all will take
        trust_code: import the code that makes the run's model, and fetch its images from a hub, if it names them
        json: print one JSON object

    Returns:
        0
    """
    from dataclasses import replace
    from json import dumps

    from dap.errors import DapError
    from dap.runtime.files import check_folder, check_inside, check_there
    from dap.specs.runs import EvaluateSpec, identity, read

    values = {
        "run": str(Path(run)),
        "sparsities": _parts(sparsity) or None,
        "attacks": _parts(attacks),
        "severities": [int(part) if part.isdigit() else part for part in _parts(severities)],
        "restarts": restarts,
        "random_start": random_start,
        "seed": seed,
        "corruptions": corruptions,
        "images": images,
        "per_side": per_side,
        "interpret": interpret,
        "root": root,
    }
    spec = read(EvaluateSpec, values, "evaluate").resolved()
    if out and dense:
        raise DapError("a result that is kept needs its dense training in place: leave --out or --dense away")
    if out is None and dense is None and (attacks or corruptions or interpret):
        name = f"evaluation-{identity(replace(spec, run='.'))}"  # however the way there is spelt
        out = str(Path(run) / name) if Path(run).is_dir() else f"{run}.{name}"
        check_inside(Path(out).parent, out)
    if out:
        check_folder(out)
    if not (out and Path(out).exists()):  # a result outlives its run
        check_there(run, "the folder of a run, or the file of a classifier")
    from dap.cli.dry_run import dry_run as rehearse
    from dap.runs.evaluating import evaluate, evaluate_run, open_to_evaluate
    from dap.runtime.engine import launch
    from dap.runtime.progress import stages

    engine = launch("1", 1, "32-true", accelerator)
    if dry_run:
        return rehearse(spec, json, engine, trust_code)
    with stages(quiet=json) as advance:

        def told(stage: str, number: int, count: int) -> None:
            advance(stage, number, count, "")

        if out:
            result = evaluate_run(spec, out, engine=engine, on_step=told, trust_code=trust_code)
        else:
            subjects = open_to_evaluate(spec, Path(run), Path(dense) if dense else None, trust_code=trust_code)
            result = evaluate(spec, Path(run), subjects, device=engine.device, on_step=told)
    overlaps = _overlaps(Path(run)) if interpret else []
    files: list[str] = []
    if out:
        from dap.report.evaluation import write_tables_and_figures

        files = write_tables_and_figures(result, Path(out), overlaps)
    if json:
        more = {"interpretation": {**result["interpretation"], "overlaps": overlaps}} if interpret else {}
        print(dumps({"run": run, "models": result["models"], "files": files, **more}))
        return 0
    for name, found in result["models"].items():
        _show(name, found)
    if out:
        print(f"saved in {out}: {', '.join(files)}")
    return 0


evaluate_models.__doc__ = str(evaluate_models.__doc__).format(
    attacks=", ".join(ATTACKS), **{option: ", ".join(taking(option)) for option in OPTIONS}
)


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _overlaps(run: Path) -> list[dict[str, Any]]:
    """With the masks of every finished pruning beside this one."""
    from dap.errors import DapError
    from dap.report.overlaps import read_overlaps
    from dap.report.records import read_records

    run = run.resolve()
    if not run.is_dir():
        return []
    try:
        return [found.row() for found in read_overlaps(run.parent, read_records(run.parent), only=run.name)]
    except DapError as error:  # about another run: what this one came to is no worse for it
        print(f"dap: masks are not compared with those of other runs: {error}", file=sys.stderr)
        return []


def _show(name: str, result: dict[str, Any]) -> None:
    print(f"sparsity {name}" if name not in ("dense", "model") else f"{name} model".replace("model model", "model"))
    for side in ("sources", "targets"):
        for domain, scores in result[side].items():
            found = scores["all" if side == "targets" else "held out"]
            title = f"unseen {domain}" if side == "targets" else domain
            print(
                f"  {title}: {found['accuracy']:.1%} (loss {found['loss']:.3f}, calibration error "
                f"{found['calibration_error']:.3f}, worst class {found['worst_class']} "
                f"{found['worst_class_accuracy']:.1%})"
            )
    for side, mean in result["means"].items():
        print(f"  mean over {_SIDES[side]}: {mean:.1%}")
    print(f"  worst domain: {result['worst']['domain']} {result['worst']['accuracy']:.1%}")
    if refused := result.get("attacks_refused"):
        print(f"  not attacked: {refused}")
    for side, title in _SIDES.items():
        for attack, severities in result.get("attacks", {}).items():
            shown = [
                _mean([row["accuracy"] for name, row in rows.items() if name in result[side]])
                for rows in severities.values()
            ]
            print(f"  {attack} at severity {', '.join(severities)}, mean over {title}: {', '.join(shown)}")
        if rows := [row for name, row in result.get("corruptions", {}).items() if name in result[side]]:
            error = [row["relative_error"] for row in rows if row.get("relative_error") is not None]
            relative = f", {sum(error) / len(error):.2f} of the dense model's errors" if error else ""
            print(f"  corruptions, mean over {title}: {_mean([row['mean'] for row in rows])}{relative}")


_SIDES = {"sources": "source domains", "targets": "unseen domains"}


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.1%}" if values else "–"
