"""dap evaluate: how well a model does, domain by domain."""


def evaluate_run(run: str, sparsity: str | None = None, dense: str | None = None, json: bool = False) -> int:
    """Evaluate the model of a run on every domain of its suite.

    Example: dap evaluate runs/coral-dap --sparsity 0.8

    Args:
        run: the folder of a dense training or of a pruning
        sparsity: of a pruning, the sparsity or pattern that was asked for
        dense: where the dense training is now, if it was moved
        json: print one JSON object

    Returns:
        0
    """
    from json import dumps

    from dap.runs.evaluating import evaluate

    result = evaluate(run, sparsity, dense)
    if json:
        print(dumps(result))
        return 0
    for side in ("sources", "targets"):
        for domain, scores in result[side].items():
            shown = ", ".join(
                f"{part} {found['accuracy']:.1%} (loss {found['loss']:.3f})" for part, found in scores.items()
            )
            print(f"{'unseen ' if side == 'targets' else ''}{domain}: {shown}")
    print(f"worst domain: {result['worst']['domain']} {result['worst']['accuracy']:.1%}")
    return 0
