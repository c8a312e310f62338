"""dap evaluate: how well models do, domain by domain, and what they withstand."""

from typing import Any


def evaluate_models(
    run: str,
    sparsity: str | None = None,
    attacks: str | None = None,
    restarts: int = 1,
    random_start: bool = True,
    seed: int = 0,
    corruptions: bool = False,
    images: int | None = None,
    interpret: bool = False,
    dense: str | None = None,
    root: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Evaluate the models of a run on every domain of its suite: accuracy, calibration, worst class and domain.

    Example: dap evaluate runs/coral-dap --sparsity 0.8

    Example: dap evaluate runs/coral-dap --sparsity 0.8 --attacks fgsm,pgd --corruptions --interpret --out robustness

    Args:
        run: the folder of a dense training or of a pruning, or the file of a classifier
        sparsity: of a pruning, the sparsities or the pattern that were asked for, separated by commas (default: all)
        attacks: fgsm, pgd, auto, separated by commas, each at five severities
        restarts: of pgd; the worst counts
        random_start: of pgd
        seed: of random starts
        corruptions: the 15 of ImageNet-C, each at five severities
        images: of each domain, for attacks and corruptions (default: all)
        interpret: logits, layers, overlap of masks, and where the models look
        dense: where the dense training is now, if it was moved
        root: the folder that holds the suite's own, if it was moved
        out: a folder for the result, tables and figures (default: with attacks, corruptions or interpret
            <run>/evaluation, else nothing is kept)
        dry_run: evaluate a few images, and say how long all will take
        json: print one JSON object

    Returns:
        0
    """
    from json import dumps
    from pathlib import Path

    from dap.errors import DapError
    from dap.progress import stages
    from dap.runs.evaluating import evaluate, evaluate_run
    from dap.specs import EvaluateSpec, read
    from dap.verbs.dry_run import dry_run as rehearse

    values = {
        "run": str(Path(run)),
        "sparsities": _parts(sparsity) or None,
        "attacks": _parts(attacks),
        "restarts": restarts,
        "random_start": random_start,
        "seed": seed,
        "corruptions": corruptions,
        "images": images,
        "interpret": interpret,
        "root": root,
    }
    spec = read(EvaluateSpec, values, "evaluate")
    if out is None and (attacks or corruptions or interpret):
        out = str(Path(run) / "evaluation") if Path(run).is_dir() else f"{run}.evaluation"
    if out and dense:
        raise DapError("a result that is kept needs its dense training in place: leave --out or --dense away")
    if dry_run:
        return rehearse(spec, json)
    with stages(quiet=json) as advance:

        def told(stage: str, number: int, count: int) -> None:
            advance(stage, number, count, "")

        if out:
            result = evaluate_run(spec, out, on_step=told)
        else:
            result = evaluate(spec, Path(run), dense=Path(dense) if dense else None, on_step=told)
    files: list[str] = []
    if out:
        from dap.report.evaluation import write_tables_and_figures

        files = write_tables_and_figures(result, Path(out))
    if json:
        print(dumps({"run": run, "models": result["models"], "files": files, **_more(result)}))
        return 0
    for name, found in result["models"].items():
        _show(name, found)
    if out:
        print(f"saved in {out}: {', '.join(files)}")
    return 0


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _more(result: dict[str, Any]) -> dict[str, Any]:
    return {"interpretation": result["interpretation"]} if "interpretation" in result else {}


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
    print(f"  worst domain: {result['worst']['domain']} {result['worst']['accuracy']:.1%}")
    for attack, severities in result.get("attacks", {}).items():
        shown = ", ".join(f"{_mean(rows):.1%}" for rows in severities.values())
        print(f"  {attack} at severities 1 to 5, mean over domains: {shown}")
    if corrupted := result.get("corruptions"):
        mean = sum(row["mean"] for row in corrupted.values()) / len(corrupted)
        print(f"  corruptions, mean over domains: {mean:.1%}")


def _mean(rows: dict[str, dict[str, float]]) -> float:
    return sum(row["accuracy"] for row in rows.values()) / len(rows)
