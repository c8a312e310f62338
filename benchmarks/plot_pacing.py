"""Charts of paced runs: `python benchmarks/plot_pacing.py runs/pacing/cartoon.json docs/images/pacing.svg`."""

import argparse
import json
from pathlib import Path

import altair as alt
import pandas as pd

SIZE = {"width": 330, "height": 240}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, help="what benchmarks/pacing.py wrote")
    parser.add_argument("out", type=Path, help="an .svg, .png or .pdf file")
    args = parser.parse_args()
    result = json.loads(args.result.read_text())
    left, middle, right = path_chart(result["history"]), loss_chart(result["history"]), accuracy_chart(result["rows"])
    chart = (left | middle | right).resolve_scale(color="independent", strokeDash="independent")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    chart.configure_view(stroke=None).save(args.out)


def path_chart(history: list[dict]) -> alt.Chart:
    """How closely the sparsity follows its path."""
    names = {"target": "path", "expected_sparsity": "expected", "sparsity": "averaged mask"}
    rows = [(row["step"], line, row[key]) for row in history for key, line in names.items()]
    return lines(rows, "step", "Sparsity follows its path", "%")


def loss_chart(history: list[dict]) -> alt.Chart:
    """Whether the relaxed network and the thresholded one agree, where masks were evaluated."""
    names = {"loss": "relaxed network", "hard_loss": "hard masks"}
    seen = [row for row in history if "hard_loss" in row]
    rows = [(row["sparsity"], line, row[key]) for row in seen for key, line in names.items()]
    return lines(rows, "sparsity", "Task loss on the step's batch", ".1f")


def accuracy_chart(results: dict) -> alt.Chart:
    """What is left on the unseen domain."""
    names = {"snapshot": "DAP", "magnitude": "magnitude"}
    rows = [
        (float(sparsity), line, values["target"])
        for method, line in names.items()
        for sparsity, values in (results["dense"] | results[method]).items()
    ]
    return lines(rows, "sparsity", "Accuracy on the unseen domain", "%")


def lines(rows: list[tuple], x: str, title: str, form: str) -> alt.Chart:
    table = pd.DataFrame(rows, columns=pd.Index([x, "line", "value"]))
    order = alt.Scale(domain=list(dict.fromkeys(table["line"])))
    return (
        alt.Chart(table, title=title)
        .mark_line(point=len(rows) < 100)
        .encode(
            x=alt.X(f"{x}:Q", axis=alt.Axis(format="%" if x == "sparsity" else "d")),
            y=alt.Y("value:Q", title=None, axis=alt.Axis(format=form)),
            color=alt.Color("line:N", scale=order, legend=alt.Legend(orient="bottom", title=None)),
            strokeDash=alt.StrokeDash("line:N", scale=order),  # readable without colour
        )
        .properties(**SIZE)
    )


if __name__ == "__main__":
    main()
