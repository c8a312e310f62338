"""What the summary says, worked out again."""

from dataclasses import replace
from statistics import fmean

from dap.report.summary import summarise


def test_summary(records):
    (one,) = [found for found in summarise(records) if found.wished == "0.5"]
    dap = [record for record in records if (record.series, record.wished) == ("DAP", "0.5")]
    dense = [record for record in records if record.series == "Dense"]
    gain = 100 * (fmean(record.unseen for record in dap) - fmean(record.unseen for record in dense))
    assert f"{gain:+.1f} points".replace("-", "−") in one.text
    assert "2 seeds" in one.text
    assert "too few to be sure" in one.text
    many = [replace(record, seed=seed) for record in records for seed in range(6) if record.seed == 0]
    assert "95 % interval" in summarise(many)[0].text
    assert one.cards[0].value == f"{100 * dap[0].sparsity:.3g} %"
    fewer = [one for one in records if one.series != "DAP" or one.seed == 0]  # compared over what both have
    dense = next(record.unseen for record in fewer if (record.series, record.seed) == ("Dense", 0))
    (text,) = [found.text for found in summarise(fewer) if found.wished == "0.5"]
    assert f"the dense model {100 * dense:.1f} %" in text
    single = [record for record in records if record.seed == 0]
    assert "one seed, so how sure this is cannot be said" in summarise(single)[0].text
