"""What the summary says, word by word, of numbers that are easy to check by hand."""

from dataclasses import replace

import pytest

from dap.report import Record
from dap.report.summary import Card, summarise


def record(method, seed, unseen, validation=0.75):
    wished, sparsity, kept = (None, 0.0, None) if method == "Dense" else ("0.5", 0.5, 500)
    weights = {"kept": kept, "total": 1000, "series": method, "dense": "Dense"}
    return Record("run", method, {}, "PACS", ("a",), seed, wished, sparsity, validation, unseen, **weights)


RECORDS = [
    *(record("Dense", seed, 0.5) for seed in (0, 1)),
    *(record("Magnitude", seed, unseen) for seed, unseen in ((0, 0.4), (1, 0.5))),
    *(record("Random", seed, 0.2) for seed in (0, 1)),
    record("DAP", 0, 0.6, 0.75),
    record("DAP", 1, 0.5, 0.7),
]


def test_every_word_and_card():
    (found,) = summarise(RECORDS)
    assert (found.suite, found.series, found.wished) == ("PACS", "DAP", "0.5")
    assert found.text == (
        "DAP cuts 50 % of the weights: 500 of 1 thousand remain. "
        "On domains it has never seen it is right 55.0 ± 7.1 % of the time, the dense model 50.0 ± 0.0 %: "
        "+5.0 points (2 seeds, from +0.0 to +10.0: too few to be sure). "
        "The best there of 2 others at this sparsity, Magnitude, is at 45.0 ± 7.1 %. "
        "On held-out images of its source domains it is right 72.5 ± 3.5 % of the time, the dense model 75.0 ± 0.0 %: "
        "−2.5 points (2 seeds, from −5.0 to +0.0: too few to be sure)."
    )
    assert found.cards == (
        Card("50 %", "of the weights are cut"),
        Card("0.53 ×", "the bytes of the weights, stored sparse"),  # 0.5 for the values, 1/32 for the bits
        Card("+5.0", "points on unseen domains"),
        Card("−2.5", "points on source domains"),
    )


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        ([0.6], "the dense model 50.0 %: +10.0 points (one seed, so how sure this is cannot be said)"),
        ([0.6] * 6, "+10.0 points (95 % interval +10.0 to +10.0, 6 seeds: a gain)"),
        ([0.4] * 6, "−10.0 points (95 % interval −10.0 to −10.0, 6 seeds: a loss)"),
        ([0.5] * 6, "+0.0 points (95 % interval +0.0 to +0.0, 6 seeds: no clear difference)"),
    ],
)
def test_how_sure_it_is(unseen, said):
    dense = [record("Dense", seed, 0.5) for seed in range(6)]  # seeds that only one has do not count
    (found,) = summarise(dense + [record("DAP", seed, value) for seed, value in enumerate(unseen)])
    _, sentence, _ = found.text.split(". ")
    assert sentence.endswith(said)


def test_without_unseen_domains_or_a_dense_model():
    (found,) = summarise([replace(one, unseen=None) for one in RECORDS])
    assert "never seen" not in found.text
    assert [card.value for card in found.cards] == ["50 %", "0.53 ×", "−2.5"]
    (found,) = summarise([one for one in RECORDS if one.method == "DAP"])
    assert found.text.endswith(
        "On held-out images of its source domains it is right 72.5 ± 3.5 % of the time; "
        "there is no dense model to compare with."
    )
    assert len(found.cards) == 2


def test_of_a_study(records):
    found = summarise(records)
    assert [(one.series, one.wished) for one in found] == [("DAP", "0.3"), ("DAP", "0.5")]
