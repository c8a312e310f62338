from statistics import stdev

import pytest

from dap.errors import DapError
from dap.report import Record, make_table


def record(unseen, seed=0, target="a", method="DAP", wished: str | None = "0.8", **options):
    return Record("run", method, options, "digits", (target,), seed, wished, 0.8, unseen / 2, unseen)


def test_mean_over_domains_then_mean_and_spread_over_seeds():
    values = {(0, "a"): 0.2, (0, "b"): 0.4, (1, "a"): 0.5, (1, "b"): 0.9, (2, "a"): 0.6, (2, "b"): 0.6}
    table = make_table([record(value, seed, target) for (seed, target), value in values.items()])
    cell = table.rows["DAP"]["0.8"]
    assert cell is not None
    assert cell.mean == pytest.approx((0.3 + 0.7 + 0.6) / 3)
    assert cell.spread == pytest.approx(stdev([0.3, 0.7, 0.6]))
    assert (cell.seeds, cell.missing) == (3, 0)
    assert str(cell) == "53.3 ± 20.8"
    assert make_table([record(0.4)], "validation").rows == make_table([record(0.2)]).rows


def test_a_seed_without_one_of_the_domains_is_left_out_and_counted():
    table = make_table([record(0.2, 0, "a"), record(0.4, 0, "b"), record(1.0, 1, "a")])
    cell = table.rows["DAP"]["0.8"]
    assert cell is not None
    assert (cell.mean, cell.seeds, cell.missing, cell.spread) == (pytest.approx(0.3), 1, 1, None)


def test_a_row_that_lacks_a_domain_altogether_has_no_mean():
    table = make_table([record(0.2, 0, "a"), record(0.4, 0, "b"), record(1.0, 0, "a", method="Taylor")])
    assert table.rows["Taylor"]["0.8"] is None


def test_what_is_missing_is_no_zero():
    table = make_table([record(0.5, method="Dense", wished=None), record(0.4), record(0.3, wished="2:4")])
    assert table.columns == ("dense", "0.8", "2:4")
    assert table.rows["Dense"]["0.8"] is None
    assert table.markdown().splitlines() == [
        "| | dense | 80% | 2:4 |",
        "|---|---|---|---|",
        "| Dense | 50.0 | – | – |",
        "| DAP | – | 40.0 | 30.0 |",
    ]


def test_options_that_differ_name_the_rows():
    options = {"prune.alpha": 1.0, "dense.objective": "erm"}
    table = make_table(
        [record(0.5, **options), record(0.4, **{**options, "prune.alpha": 0.0}), record(0.3, method="Taylor")]
    )
    assert list(table.rows) == ["Taylor", "DAP (alpha 1.0)", "DAP (alpha 0.0)"]


def test_nothing_to_show():
    with pytest.raises(DapError, match="no run is finished yet"):
        make_table([])
