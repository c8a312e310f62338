"""dap evaluate: how well a model does, domain by domain."""


def evaluate_models(
    run: str,
    sparsity: str | None = None,
    dense: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Evaluate the models of a run on every domain of its suite.

    Example: dap evaluate runs/coral-dap --sparsity 0.8

    Args:
        run: the folder of a dense training or of a pruning
        sparsity: of a pruning, the sparsities or the pattern that were asked for, separated by commas (default: all)
        dense: where the dense training is now, if it was moved
        out: a folder to keep the result in (default: it is only printed)
        dry_run: evaluate a few images, and say how long all will take
        json: print one JSON object

    Returns:
        0
    """
    from json import dumps

    from dap.errors import DapError
    from dap.progress import stages
    from dap.runs.evaluating import evaluate, evaluate_run
    from dap.specs import EvaluateSpec
    from dap.verbs.dry_run import dry_run as rehearse

    if out and dense:
        raise DapError("a result that is kept needs its dense training in place: leave --out or --dense away")
    wished = tuple(part.strip() for part in sparsity.split(",")) if sparsity else None
    if dry_run:
        return rehearse(EvaluateSpec(run, wished), json)
    with stages(quiet=json) as advance:

        def told(name: str, number: int, count: int) -> None:
            advance("evaluation", number, count, name)

        if out:
            models = evaluate_run(EvaluateSpec(run, wished), out, on_step=told)["models"]
        else:
            models = evaluate(run, wished, dense, on_step=told)
    if json:
        print(dumps({"run": run, "models": models}))
        return 0
    for name, result in models.items():
        print("dense model" if name == "dense" else f"sparsity {name}")
        for side in ("sources", "targets"):
            for domain, scores in result[side].items():
                shown = ", ".join(
                    f"{part} {found['accuracy']:.1%} (loss {found['loss']:.3f})" for part, found in scores.items()
                )
                print(f"  {'unseen ' if side == 'targets' else ''}{domain}: {shown}")
        print(f"  worst domain: {result['worst']['domain']} {result['worst']['accuracy']:.1%}")
    return 0
