"""The paper's claims beside what runs on PACS came to.

    python benchmarks/claims.py docs/results/pacs

prints the table of docs/results/pacs-claims.md: every claim as a difference, in points of accuracy on unseen domains,
between two models with the same dense weights, over all trials (a target and a seed) that have both, with a 95 %
bootstrap interval over trials and images; with every unseen domain weighted alike, however many seeds it has; and on
the held-out images of the sources. What is not done yet is said. The last line is one JSON object.

    python benchmarks/claims.py docs/results/pacs docs/results/pacs/preset --pooled

compares DAP with the preset's path, and its dense models, over all objectives: a trial is a target, a seed and an
objective.
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

from dap.config import PruneConfig
from dap.evaluation.bits import unpack_bits
from dap.report import Record, read_findings, read_records
from dap.report.findings import Finding, Point
from dap.report.series import DENSE
from dap.report.statistics import Difference, paired
from dap.report.tables import image_differences
from dap.runtime.files import write_atomic
from dap.specs.methods import METHODS

Trial = tuple[Any, ...]  # what is unseen, the seed and, over several objectives, the objective
DAP, RAW, AGNOSTIC = METHODS["dap"].title, METHODS["dap"].called(raw=True), METHODS["agnostic"].title
MOVEMENT = METHODS["movement"].title
AUTO = ("autoattack", "auto")


_YARDSTICK = (
    "**A yardstick:** at the checks within 400 steps of the checkpoint that is pruned, the accuracy of the same dense "
    "training on the unseen domain has a standard deviation of {spread:.1f} points, and its mean is {offset:+.1f} "
    "points from that of the checkpoint ({trials} trials)."
)
_SURVIVORS = (
    "**PGD and AutoAttack on the same images**, at 2/255: of {images} {side} images the dense model has {0} right "
    "under PGD and {1} under AutoAttack, the sparse one {2} and {3}."
)


@dataclass(frozen=True)
class Result:
    accuracy: float  # on unseen domains
    right: Mapping[str, str]  # by unseen domain, which images: see `dap.evaluation.bits`
    sources: float | None = None  # accuracy on their held-out images


Results = Mapping[Trial, Result]


@dataclass(frozen=True)
class Claim:
    text: str
    paper: str  # the difference that the paper has on PACS, if it has one
    ours: Results
    theirs: Results
    least: float = 0.0  # points that ours must be ahead by
    share: float = 1.0  # of theirs that ours must keep


def claims(records: Sequence[Record], findings: Sequence[Finding]) -> list[Claim]:
    def models(method: str, wished: str | None, objective: str = "erm") -> Results:
        return {
            (record.targets, record.seed): Result(record.unseen, record.right, record.validation)
            for record in records
            if (record.method, record.wished) == (method, wished)
            and record.unseen is not None
            and record.options["dense.objective"] == objective
        }

    def attacked(wished: str | None, *attack: str) -> Results:
        sides = [_under_attack(records, findings, unseen, wished, *attack) for unseen in (True, False)]
        unseen, sources = ({(one.targets, one.seed): one for one in side} for side in sides)
        return {
            trial: Result(found.accuracy, found.right, sources[trial].accuracy if trial in sources else None)
            for trial, found in unseen.items()
        }

    dense, at_80, at_90 = models(DENSE, None), models(DAP, "0.8"), models(DAP, "0.9")
    return [
        Claim("at 40 %, DAP is at least as accurate as dense", "+3.4", models(DAP, "0.4"), dense),
        Claim("at 60 %, too", "+2.8", models(DAP, "0.6"), dense),
        Claim("at 80 %, too", "+1.6", at_80, dense),
        Claim("at 80 %, DAP keeps 98 % of the dense accuracy", "+3.3", at_80, dense, share=0.98),
        Claim("at 90 %, averaged masks keep all of it", "", at_90, dense),
        Claim("at 90 %, raw masks keep 98 % of it", "", models(RAW, "0.9"), dense, share=0.98),
        Claim("at 80 %, averaged masks beat raw ones", "", at_80, models(RAW, "0.8")),
        Claim("at 90 %, averaged masks beat raw ones", "", at_90, models(RAW, "0.9")),
        Claim("at 80 %, DAP beats dense that is trained on", "", at_80, models("Dense, trained on", None)),
        Claim("at 20 %, DAP beats random by 20 points", "+65.8", models(DAP, "0.2"), models("Random", "0.2"), 20),
        Claim("at 80 %, DAP beats magnitude by 20 points", "+39.1", at_80, models("Magnitude", "0.8"), 20),
        Claim("at 80 %, DAP beats Taylor by more than 20", "+69.5", at_80, models("Taylor", "0.8"), 20),
        Claim("at 90 %, DAP beats magnitude by 20 points", "", at_90, models("Magnitude", "0.9"), 20),
        Claim("at 90 %, DAP beats Taylor by more than 20", "", at_90, models("Taylor", "0.9"), 20),
        Claim("at 80 %, magnitude beats Taylor", "+30.4", models("Magnitude", "0.8"), models("Taylor", "0.8")),
        Claim("at 80 %, DAP beats movement, whose weights move", "", at_80, models(MOVEMENT, "0.8")),
        Claim("at 80 %, α > 0 beats α = 0", "a figure", at_80, models(AGNOSTIC, "0.8")),
        Claim("at 90 %, α > 0 beats α = 0", "a figure", at_90, models(AGNOSTIC, "0.9")),
        *(
            Claim(
                f"at {wished}, DAP keeps the accuracy of {name}",
                paper,
                models(DAP, share, objective=name.lower()),
                models(DENSE, None, objective=name.lower()),
            )
            for name, wished, share, paper in (
                ("CORAL", "40 %", "0.4", "+0.9"),
                ("CORAL", "80 %", "0.8", "+2.6"),
                ("MIRO", "40 %", "0.4", "+0.6"),
                ("MIRO", "80 %", "0.8", "+0.1"),
            )
        ),
        Claim("under PGD at 2/255, 80 % sparse is 8 points ahead", "+21.9", attacked("0.8"), attacked(None), 8),
        Claim("under AutoAttack at 2/255, it is ahead, too", "", attacked("0.8", *AUTO), attacked(None, *AUTO)),
    ]


def pooled(records: Sequence[Record]) -> list[Claim]:
    """DAP with the preset's path beside dense, over all objectives."""
    path = PruneConfig().resolved().paced

    def models(method: str, wished: str | None) -> Results:
        return {
            (record.targets, record.seed, record.options["dense.objective"]): Result(
                record.unseen, record.right, record.validation
            )
            for record in records
            if (record.method, record.wished) == (method, wished) and record.unseen is not None
            if method == DENSE or _path(record) == (path.start, path.curve)
        }

    dense = models(DENSE, None)
    return [
        Claim(f"at {100 * share:.0f} %, DAP is at least as accurate as dense", "", models(DAP, str(share)), dense)
        for share in (0.2, 0.4, 0.6, 0.8, 0.9)
    ]


def _path(record: Record) -> tuple[float, float]:
    return record.options.get("prune.paced.start", 1.0), record.options["prune.paced.curve"]


def _under_attack(
    records: Sequence[Record],
    findings: Sequence[Finding],
    unseen: bool,
    wished: str | None,
    kind: str = "attacks",
    case: str = "pgd",
) -> list[Finding]:
    """Of dense models, or of DAP at a sparsity, at ε = 2/255."""
    method = DENSE if wished is None else DAP
    erm = (record for record in records if record.options["dense.objective"] == "erm")
    series = {record.series for record in erm if record.method == method}
    return [
        found
        for found in findings
        if (found.kind, found.case, found.severity, found.unseen) == (kind, case, "3", unseen)
        if found.wished == wished and found.series in series
    ]


def survivors(records: Sequence[Record], findings: Sequence[Finding]) -> list[str]:
    """How many of the images that AutoAttack saw are right under it and under PGD, which saw these first."""
    lines = []
    for unseen in (True, False):
        counts, images = [], 0
        for wished in (None, "0.8"):
            auto = _under_attack(records, findings, unseen, wished, *AUTO)
            pgd = {(one.targets, one.seed): one for one in _under_attack(records, findings, unseen, wished)}
            pairs = [
                (unpack_bits(pgd[one.targets, one.seed].right[domain]), unpack_bits(bits))
                for one in auto
                for domain, bits in one.right.items()
                if (one.targets, one.seed) in pgd and domain in pgd[one.targets, one.seed].right
            ]
            counts += [int(sum(first[: len(both)].sum() for first, both in pairs)), int(sum(b.sum() for _, b in pairs))]
            images = sum(len(both) for _, both in pairs)
        if images:
            lines.append(_SURVIVORS.format(*counts, images=images, side="unseen" if unseen else "source"))
    return lines


def measure(claim: Claim) -> Difference | None:
    """Ours less the share of theirs, in points, over all trials."""
    trials = [trial for trial in claim.ours if trial in claim.theirs]
    right = [{trial: {trial[0]: results[trial].right} for trial in trials} for results in (claim.ours, claim.theirs)]
    found = paired(
        {trial: claim.ours[trial].accuracy for trial in trials},
        {trial: claim.share * claim.theirs[trial].accuracy for trial in trials},
        image_differences(*right) if claim.share == 1 else None,
    )
    if found is None:
        return None
    low, high = (None if value is None else 100 * value for value in (found.low, found.high))
    return Difference(100 * found.mean, low, high, found.seeds)


def differences(claim: Claim) -> dict[Trial, float]:
    """Ours less the share of theirs, in points, by trial."""
    return {
        trial: 100 * (ours.accuracy - claim.share * claim.theirs[trial].accuracy)
        for trial, ours in claim.ours.items()
        if trial in claim.theirs
    }


def by_domain(claim: Claim) -> float | None:
    """The same, as the mean over unseen domains of the mean over seeds."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for trial, difference in differences(claim).items():
        found[trial[0]].append(difference)
    return fmean(map(fmean, found.values())) if found else None


def on_sources(claim: Claim) -> float | None:
    """The same on the held-out images of the sources, over all trials."""
    pairs = [(ours.sources, claim.theirs[trial].sources) for trial, ours in claim.ours.items() if trial in claim.theirs]
    known = [100 * (ours - claim.share * theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    return fmean(known) if known else None


def verdict(claim: Claim, found: Difference) -> str:
    """By the mean over all trials. Where its interval has what is claimed inside, or trials are few, it is open.

    Below six trials a bootstrap interval is too narrow: every single one must be on the same side, too.
    """
    if found.seeds < 2 or found.low is None or found.high is None:
        return "open: one trial"
    single = list(differences(claim).values()) if found.seeds < 6 else []
    enough = found.seeds >= 4
    if found.mean >= claim.least:
        sure = enough and min([found.low, *single]) >= claim.least
        return "holds" if sure else "holds partly: on average; open"
    sure = enough and max([found.high, *single]) < claim.least
    return "does not hold here" if sure else "does not hold on average; open"


def show(found: Difference | None) -> str:
    if found is None:
        return "–"
    between = "" if found.low is None or found.high is None else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.mean:+.1f}{between}, {found.seeds} trial{'s' * (found.seeds != 1)}"


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


def table(study: Path, measured: bool = False, seeds: Sequence[int] | None = None) -> tuple[str, dict[str, Any]]:
    """In Markdown, and as plain values: of all or some seeds, with or without what is not measured yet."""
    records = [record for record in read_records(study) if seeds is None or record.seed in seeds]
    findings = read_findings(study, records)
    rows, found = judge(claims(records, findings.robustness), measured)
    dense = {one.series for one in records if one.method == DENSE and one.options["dense.objective"] == "erm"}
    moved = yardstick([point for point in findings.points if point.series in dense])
    if moved is not None and not measured:
        spread, offset, trials = moved
        rows += ["", _YARDSTICK.format(spread=spread, offset=offset, trials=trials)]
        found["yardstick"] = {"standard deviation": spread, "offset": offset, "trials": trials}
    for line in [] if measured else survivors(records, findings.robustness):
        rows += ["", line]
    return "\n".join(rows) + "\n", found


def pooled_table(studies: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    rows, found = judge(pooled([record for study in studies for record in read_records(study)]), measured=True)
    return "\n".join(rows) + "\n", found


def judge(every: Sequence[Claim], measured: bool) -> tuple[list[str], dict[str, Any]]:
    """A row for every claim, and the same as plain values."""
    rows = [
        "| claim | paper | unseen, all trials | unseen, domains weighted alike | sources, all trials | |",
        "|---|---|---|---|---|---|",
    ]
    found: dict[str, Any] = {}
    for claim in every:
        over_all = measure(claim)
        if over_all is None and measured:
            continue
        word = "not measured yet" if over_all is None else verdict(claim, over_all)
        means = ("–" if mean is None else f"{mean:+.1f}" for mean in (by_domain(claim), on_sources(claim)))
        rows.append(f"| {' | '.join((claim.text, claim.paper or '–', show(over_all), *means, word))} |")
        found[claim.text] = {"difference": None if over_all is None else over_all.mean, "verdict": word}
    return rows, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", type=Path, nargs="+", help="the folder of the study; pooled, of several")
    parser.add_argument("--out", type=Path, help="a file for the table alone")
    parser.add_argument("--measured", action="store_true", help="rows that are measured, and nothing else")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="trials with these alone")
    parser.add_argument("--pooled", action="store_true", help="the preset beside dense, over all objectives")
    args = parser.parse_args()
    if len(args.studies) > 1 and not args.pooled:
        parser.error("several studies are only looked at as one with --pooled")
    text, found = pooled_table(args.studies) if args.pooled else table(args.studies[0], args.measured, args.seeds)
    if args.out is not None:
        write_atomic(args.out, text.encode())
    print(text + json.dumps(found))


if __name__ == "__main__":
    main()
