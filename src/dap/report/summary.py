"""What someone who ships a model asks first: how much was cut, and what it gained or lost."""

from collections.abc import Sequence
from dataclasses import dataclass

from dap.report.records import Record
from dap.report.statistics import ENOUGH, Difference, Mean, mean_of, of_both, paired
from dap.report.table import points, show
from dap.report.tables import Numbers, Side, in_order, wishes
from dap.specs.methods import LEAD


@dataclass(frozen=True)
class Card:
    value: str
    label: str


@dataclass(frozen=True)
class Summary:
    """Of one suite and one series at one sparsity."""

    suite: str
    series: str
    wished: str
    text: str
    cards: tuple[Card, ...]


def summarise(records: Sequence[Record]) -> list[Summary]:
    """For every suite and sparsity, of DAP on every dense model, else of the first method."""
    found = []
    records = in_order(records)
    for suite in dict.fromkeys(record.suite for record in records):
        ours = [record for record in records if record.suite == suite]
        for wished in wishes(ours):
            sparse = [record for record in ours if record.wished == wished]
            leads = [record for record in sparse if record.method == LEAD.title] or sparse[:1]
            found += [_summary(ours, suite, wished, series) for series in dict.fromkeys(one.series for one in leads)]
    return found


def _summary(records: Sequence[Record], suite: str, wished: str, series: str) -> Summary:
    model = next(record for record in records if (record.series, record.wished) == (series, wished))
    cards = [Card(f"{100 * model.sparsity:.3g} %", "of the weights are cut")]
    text = [f"{series} cuts {100 * model.sparsity:.3g} % of the weights"]
    if model.kept is not None and model.total:
        size = model.kept / model.total + 1 / 32  # the values that are kept, and a bit for each weight
        cards.append(Card(f"{min(1, size):.2f} ×", "the bytes of the weights, stored sparse"))
        text[0] += f": {_count(model.kept)} of {_count(model.total)} remain"
    text[0] += "."
    sides: dict[Side, str] = {
        "unseen": "domains it has never seen",
        "validation": "held-out images of its source domains",
    }
    for side, title in sides.items():
        if side == "unseen" and model.unseen is None:
            continue
        numbers = Numbers([one for one in records if side == "validation" or one.unseen is not None], side)
        ours, dense = numbers.seeds(suite, series, wished), numbers.seeds(suite, model.dense, None)
        difference = paired(ours, dense)
        if difference is not None:
            ours, dense = of_both(ours, dense)
        text.append(_sentence(title, mean_of(list(ours.values())), mean_of(list(dense.values())), difference))
        if difference is not None:
            label = "points on unseen domains" if side == "unseen" else "points on source domains"
            cards.append(Card(points(difference.mean), label))
        if side == "unseen" and (other := _next_best(numbers, suite, series, wished)):
            text.append(other)
    return Summary(suite, series, wished, " ".join(text), tuple(cards))


def _sentence(title: str, ours: Mean | None, dense: Mean | None, difference: Difference | None) -> str:
    if ours is None:
        return f"On {title} no seed has every unseen domain yet."
    if dense is None or difference is None:
        return f"On {title} it is right {show(ours)} % of the time; there is no dense model to compare with."
    confidence = "one seed, so how sure this is cannot be said"
    if difference.low is not None and difference.high is not None:
        interval = f"{points(difference.low)} to {points(difference.high)}"
        confidence = f"{difference.seeds} seeds, from {interval}: too few to be sure"
        if difference.seeds >= ENOUGH:
            verdict = "no clear difference"
            if difference.sure:
                verdict = "a gain" if difference.mean > 0 else "a loss"
            confidence = f"95 % interval {interval}, {difference.seeds} seeds: {verdict}"
    return (
        f"On {title} it is right {show(ours)} % of the time, the dense model {show(dense)} %: "
        f"{points(difference.mean)} points ({confidence})."
    )


def _next_best(numbers: Numbers, suite: str, series: str, wished: str) -> str | None:
    """The best of the other methods, on the unseen domains, with the same seeds."""
    ours = numbers.seeds(suite, series, wished)
    others = {
        other: difference
        for other, wish in numbers.models
        if wish == wished and other != series
        if (difference := paired(numbers.seeds(suite, other, wished), ours)) is not None
    }
    if not others:
        return None
    best = max(others, key=lambda name: others[name].mean)
    theirs = mean_of(list(of_both(numbers.seeds(suite, best, wished), ours)[0].values()))
    return f"The best there of {len(others)} others at this sparsity, {best}, is at {show(theirs)} %."


def _count(weights: int) -> str:
    """
    >>> _count(23_508_032), _count(152_000), _count(900)
    ('23.5 million', '152 thousand', '900')
    """
    for size, name in ((1_000_000, "million"), (1_000, "thousand")):
        if weights >= size:
            return f"{weights / size:.3g} {name}"
    return str(weights)
