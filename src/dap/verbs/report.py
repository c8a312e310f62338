"""dap report: what runs came to."""


def report_runs(runs: str, out: str | None = None, json: bool = False) -> int:
    """Show what the finished runs of a study, or one run, came to: methods against sparsities.

    Example: dap report runs/digits --out digits.md

    Args:
        runs: the folder of a study or of a run
        out: a file for the tables, in Markdown (default: they are printed)
        json: print one JSON object

    Returns:
        0
    """
    from dataclasses import asdict
    from json import dumps

    from dap.files import write_atomic
    from dap.report import make_table, read_records

    records = read_records(runs)
    sides = ("unseen", "validation") if all(record.unseen is not None for record in records) else ("validation",)
    tables = {side: make_table(records, side) for side in sides}
    if json:
        shown = {"records": records, "tables": list(tables.values())}
        print(dumps({name: [asdict(one) for one in found] for name, found in shown.items()}))
        return 0
    text = []
    for side, table in tables.items():
        cells = [cell for row in table.rows.values() for cell in row.values() if cell is not None]
        title = "the unseen domain" if side == "unseen" else "the sources' held-out images"
        counts = sorted({cell.seeds for cell in cells})
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        unseen = ", ".join("+".join(names) for names in table.targets)
        text.append(
            f"Accuracy in % on {title}, {unseen} unseen in turn: mean ± standard deviation over seeds ({seeds})"
        )
        if left_out := sum(cell.missing for cell in cells):
            text.append(f"{left_out} times a seed was left out that lacks an unseen domain")
        text += ["", table.markdown(), ""]
    if out:
        write_atomic(out, "\n".join(text).encode())
        print(f"written to {out}")
    else:
        print("\n".join(text), end="")
    return 0
