"""The paper's claims beside what runs on PACS came to.

    python benchmarks/claims.py docs/results/pacs

prints the table of docs/results/pacs-claims.md: every claim as a difference, in points of accuracy on unseen domains,
between two models with the same dense weights, over all trials (a target and a seed) that have both, with a 95 %
bootstrap interval over trials and images; and over the first seed alone, whose trials have every domain unseen once.
What is not done yet is said. The last line is one JSON object.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np

from dap.bits import unpack_bits
from dap.files import write_atomic
from dap.methods import METHODS
from dap.report import Record, read_findings, read_records
from dap.report.findings import Finding, Point
from dap.report.series import DENSE
from dap.report.statistics import Difference, paired

Trial = tuple[tuple[str, ...], int]  # what is unseen, and the seed
DAP, RAW, AGNOSTIC = METHODS["dap"].title, METHODS["dap"].called(raw=True), METHODS["agnostic"].title
MOVEMENT = METHODS["movement"].title


_YARDSTICK = (
    "**A yardstick:** at the checks within 400 steps of the checkpoint that is pruned, the accuracy of the same dense "
    "training on the unseen domain has a standard deviation of {spread:.1f} points, and its mean is {offset:+.1f} "
    "points from that of the checkpoint ({trials} trials)."
)


@dataclass(frozen=True)
class Result:
    accuracy: float
    right: Mapping[str, str]  # see `dap.bits`


Results = Mapping[Trial, Result]


@dataclass(frozen=True)
class Claim:
    text: str
    ours: Results
    theirs: Results
    least: float = 0.0  # points that ours must be ahead by
    share: float = 1.0  # of theirs that ours must keep


def claims(records: Sequence[Record], findings: Sequence[Finding]) -> list[Claim]:
    def models(method: str, wished: str | None, objective: str = "erm") -> Results:
        return {
            (record.targets, record.seed): Result(record.unseen, record.right)
            for record in records
            if (record.method, record.wished) == (method, wished)
            and record.unseen is not None
            and record.options["dense.objective"] == objective
        }

    def attacked(wished: str | None, kind: str = "attacks", case: str = "pgd") -> Results:
        wanted = {DENSE} if wished is None else {DAP}
        series = {record.series for record in records if record.method in wanted}
        return {
            (found.targets, found.seed): Result(found.accuracy, found.right)
            for found in findings
            if (found.kind, found.case, found.severity) == (kind, case, "3")  # ε = 2/255
            if found.unseen and found.wished == wished and found.series in series
        }

    dense, auto = models(DENSE, None), ("autoattack", "auto")
    return [
        Claim("at 80 %, DAP keeps the dense accuracy", models(DAP, "0.8"), dense),
        Claim("at 90 %, averaged masks keep it, too", models(DAP, "0.9"), dense),
        Claim("at 90 %, raw masks keep 98 % of it", models(RAW, "0.9"), dense, share=0.98),
        Claim("at 40 %, DAP is at least as accurate as dense", models(DAP, "0.4"), dense),
        Claim("at 80 %, DAP beats magnitude by 20 points", models(DAP, "0.8"), models("Magnitude", "0.8"), 20),
        Claim("at 80 %, DAP beats Taylor by more", models(DAP, "0.8"), models("Taylor", "0.8"), 20),
        Claim("at 80 %, DAP beats movement, whose weights move", models(DAP, "0.8"), models(MOVEMENT, "0.8")),
        Claim("at 80 %, α > 0 beats α = 0", models(DAP, "0.8"), models(AGNOSTIC, "0.8")),
        Claim("at 90 %, α > 0 beats α = 0", models(DAP, "0.9"), models(AGNOSTIC, "0.9")),
        Claim("at 80 %, averaged masks beat raw ones (ours)", models(DAP, "0.8"), models(RAW, "0.8")),
        Claim("at 80 %, DAP beats dense that is trained on", models(DAP, "0.8"), models("Dense, trained on", None)),
        *(
            Claim(
                f"at {wished}, DAP keeps the accuracy of {name}",
                models(DAP, share, objective=name.lower()),
                models(DENSE, None, objective=name.lower()),
            )
            for name in ("CORAL", "MIRO")
            for wished, share in (("40 %", "0.4"), ("80 %", "0.8"))
        ),
        Claim("under PGD at 2/255, 80 % sparse is 8 points ahead", attacked("0.8"), attacked(None), 8),
        Claim("under AutoAttack at 2/255, it is ahead, too", attacked("0.8", *auto), attacked(None, *auto)),
    ]


def measure(claim: Claim, first_seed: bool = False) -> Difference | None:
    """Ours less the share of theirs, in points."""
    trials = [trial for trial in claim.ours if trial in claim.theirs and not (first_seed and trial[1])]
    images = {trial: _images(claim.ours[trial], claim.theirs[trial]) for trial in trials}
    found = paired(
        {trial: claim.ours[trial].accuracy for trial in trials},
        {trial: claim.share * claim.theirs[trial].accuracy for trial in trials},
        {trial: known for trial, known in images.items() if known} if claim.share == 1 else None,
    )
    if found is None:
        return None
    low, high = (None if value is None else 100 * value for value in (found.low, found.high))
    return Difference(100 * found.mean, low, high, found.seeds)


def _images(ours: Result, theirs: Result) -> list[np.ndarray]:
    """By domain, 1 for an image that we alone have right, −1 for one that they alone have, else 0."""
    if not ours.right or ours.right.keys() != theirs.right.keys():
        return []
    pairs = [(unpack_bits(bits), unpack_bits(theirs.right[domain])) for domain, bits in ours.right.items()]
    if any(len(one) != len(other) for one, other in pairs):
        return []
    return [one.astype(int) - other.astype(int) for one, other in pairs]


def verdict(claim: Claim, over_all: Difference, first: Difference | None) -> str:
    """By the means. Where an interval has the least that is claimed inside, other seeds or images may say otherwise."""
    known = [found for found in (over_all, first) if found is not None]
    means = [found.mean >= claim.least for found in known]
    word = "holds" if all(means) else "holds partly" if any(means) else "does not hold here"
    intervals = [(found.low, found.high) for found in known if found.low is not None and found.high is not None]
    if over_all.seeds < 2 or len(intervals) < len(known):
        return f"{word}, in one trial"
    return f"{word}, within the noise" if any(low < claim.least <= high for low, high in intervals) else word


def show(found: Difference | None) -> str:
    if found is None:
        return "–"
    between = "" if found.low is None or found.high is None else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.mean:+.1f}{between}, {found.seeds} trials"


def yardstick(points: Sequence[Point], near: int = 400) -> tuple[float, float, int] | None:
    """How much a dense model's accuracy on the unseen domain moves while it is trained.

    In points: its standard deviation over the checks within `near` steps of the one that source validation chose, how
    far their mean is from it, both over trials, and the number of trials.
    """
    trials: dict[Trial, list[Point]] = defaultdict(list)
    for point in points:
        if point.sparsity == 0:
            trials[point.targets, point.seed].append(point)
    spreads, offsets = [], []
    for checks in trials.values():
        chosen = max(checks, key=lambda point: point.validation)
        around = [point.unseen for point in checks if 0 < abs(point.step - chosen.step) <= near]
        if len(around) > 1:
            spreads.append(variance(around))
            offsets.append(fmean(around) - chosen.unseen)
    return (100 * math.sqrt(fmean(spreads)), 100 * fmean(offsets), len(spreads)) if spreads else None


def table(study: Path) -> tuple[str, dict[str, Any]]:
    """In Markdown, and as plain values."""
    records = read_records(study)
    findings = read_findings(study, records)
    rows = ["| claim | all trials | seed 0, every domain unseen once | |", "|---|---|---|---|"]
    found: dict[str, Any] = {}
    for claim in claims(records, findings.robustness):
        over_all, first = measure(claim), measure(claim, first_seed=True)
        word = "not measured yet" if over_all is None else verdict(claim, over_all, first)
        rows.append(f"| {claim.text} | {show(over_all)} | {show(first)} | {word} |")
        found[claim.text] = {"difference": None if over_all is None else over_all.mean, "verdict": word}
    dense = {one.series for one in records if one.method == DENSE and one.options["dense.objective"] == "erm"}
    moved = yardstick([point for point in findings.points if point.series in dense])
    if moved is not None:
        spread, offset, trials = moved
        rows += ["", _YARDSTICK.format(spread=spread, offset=offset, trials=trials)]
        found["yardstick"] = {"standard deviation": spread, "offset": offset, "trials": trials}
    return "\n".join(rows) + "\n", found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="the folder of the study")
    parser.add_argument("--out", type=Path, help="a file for the table alone")
    args = parser.parse_args()
    text, found = table(args.study)
    if args.out is not None:
        write_atomic(args.out, text.encode())
    print(text + json.dumps(found))


if __name__ == "__main__":
    main()
