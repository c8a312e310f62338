"""Which numbers go where."""

from dataclasses import replace
from statistics import fmean, stdev

import pytest

from dap.errors import DapError
from dap.report import Difference, Mean, Record, all_tables, overview
from dap.report.findings import Finding
from dap.report.tables import domains, plug_and_play, pruning, robustness, suites


def record(unseen, seed=0, target="a", method="DAP", wished: str | None = "0.8", suite="digits", **more):
    values = {"validation": unseen / 2, "domainbed": unseen, "series": method, "dense": "Dense", **more}
    return Record("run", method, {}, suite, (target,), seed, wished, float(wished or 0), unseen=unseen, **values)


def dense(unseen, **options):
    return record(unseen, method="Dense", wished=None, **options)


def column(table, title, series, wished="0.8"):
    place = [one.title for one in table.columns].index(title)
    (row,) = [row for row in table.rows if (row.series, row.wished) == (series, wished)]
    return row.cells[place]


def test_mean_over_domains_then_mean_and_spread_over_seeds():
    values = {(0, "a"): 0.2, (0, "b"): 0.4, (1, "a"): 0.5, (1, "b"): 0.9, (2, "a"): 0.6, (2, "b"): 0.6}
    records = [record(value, seed, target) for (seed, target), value in values.items()]
    (row,) = overview(records).rows
    cell = row.cells[1]
    assert isinstance(cell, Mean)
    assert cell.mean == pytest.approx((0.3 + 0.7 + 0.6) / 3)
    assert cell.spread == pytest.approx(stdev([0.3, 0.7, 0.6]))
    assert (cell.seeds, cell.missing) == (3, 0)
    assert overview(records, "validation").rows[0].cells[1].mean == pytest.approx(cell.mean / 2)


def test_a_seed_without_one_of_the_domains_is_left_out_and_counted():
    table = overview([record(0.2, 0, "a"), record(0.4, 0, "b"), record(1.0, 1, "a")])
    cell = table.rows[0].cells[1]
    assert (cell.mean, cell.seeds, cell.missing, cell.spread) == (pytest.approx(0.3), 1, 1, None)
    assert "1 times a seed is missing, or left out" in table.note


def test_fine_tuned_rows_come_last_and_shares_of_flops_are_named():
    names = ["IoR (a reconstruction), fine-tuned", "Magnitude, fine-tuned", "DAP", "Magnitude"]
    table = overview([dense(0.5), *(record(0.4, method=name) for name in names)])
    assert [row.series for row in table.rows] == ["Dense", "Magnitude", "DAP", names[1], names[0]]
    assert "FLOPs" not in table.note
    channels = replace(record(0.4), options={"allocation": "flops"})
    assert "A sparsity is the share of FLOPs that is gone." in overview([dense(0.5), channels]).note
    both = overview([channels, record(0.4, method="Magnitude")])
    assert "Where whole channels are cut, a sparsity is the share of FLOPs" in both.note


def test_a_seed_that_a_method_lacks_is_counted():
    table = overview([dense(0.5), dense(0.7, seed=1), record(0.4)])
    cells = [row.cells[place] for row, place in zip(table.rows, (1, 2), strict=True)]
    assert [(cell.seeds, cell.missing) for cell in cells] == [(2, 0), (1, 1)]


def test_the_control_under_attack_is_compared_with_the_dense_model():
    def finding(series, accuracy, wished=None, **more):
        return Finding("attacks", "pgd", "1", True, accuracy, "digits", ("a",), 0, series, "Dense", wished, **more)

    table = robustness(
        [finding("Dense", 0.4), finding("Dense, trained on", 0.5), finding("DAP", 0.6, "0.8")], "digits", "attacks"
    )
    assert table is not None
    assert [row.cells[2] for row in table.rows] == ["Dense, trained on", "DAP"]
    assert [round(row.cells[9].mean, 3) for row in table.rows] == [0.1, 0.2]
    waiting = robustness([finding("Dense", 0.4, expected=(("b",),)), finding("DAP", 0.6, "0.8")], "digits", "attacks")
    assert waiting is not None
    assert waiting.rows[0].cells[7:] == (None, None, None)


def test_what_training_on_gains_is_against_the_dense_model():
    control = [record(unseen, seed, method="Dense, trained on", wished=None) for seed, unseen in ((0, 0.6), (1, 0.9))]
    table = pruning([dense(0.5), dense(0.7, seed=1), record(0.4), *control])
    assert table is not None
    assert column(table, "Δ", "Dense, trained on", None).mean == pytest.approx(0.15)
    assert column(table, "Δ", "Dense", None) == "—"


def test_what_is_missing_is_no_zero():
    records = [dense(0.5), record(0.4)]
    records.append(replace(record(0.3), wished="2:4"))
    table = overview(records)
    assert [one.title for one in table.columns] == ["method", "dense", "80 %", "2:4"]
    assert [row.cells[1:] for row in table.rows] == [
        (Mean(0.5, None, 1), None, None),
        (None, Mean(0.4, None, 1), Mean(0.3, None, 1)),
    ]
    lacking = [*records, record(1.0, target="b", method="Taylor")]
    assert all(cell is None for row in overview(lacking).rows for cell in row.cells[1:])


def test_suites_and_their_average():
    records = [record(0.5), record(0.7, suite="PACS"), record(0.9, method="Taylor", suite="PACS")]
    table = suites(records)
    assert column(table, "average", "DAP").mean == pytest.approx(0.6)
    assert column(table, "average", "Taylor") is None  # it has not all suites


def test_domains_and_the_selected_sparsity():
    records = []
    for seed, target in [(0, "a"), (0, "b"), (1, "a"), (1, "b")]:
        records += [record(0.3, seed, target, wished="0.2", validation=0.9 if target == "a" else 0.1)]
        records += [record(0.6, seed, target, wished="0.8", validation=0.5)]
    table = domains(records, "digits")
    chosen = table.rows[-1]
    assert chosen.cells[:2] == ("DAP", "selected")
    assert [cell.mean for cell in chosen.cells[2:]] == pytest.approx([0.3, 0.6, 0.45])
    assert shares(table) == ["(20 %)", "(80 %)", "(50 %)"]
    # It is source validation that selects: unseen numbers may say what they like.
    other = [replace(one, unseen=1 - one.unseen) for one in records]
    assert shares(domains(other, "digits")) == shares(table)
    equal = [replace(one, validation=0.5) for one in records]
    assert shares(domains(equal, "digits")) == ["(80 %)"] * 3  # of equals the sparser


def shares(table):
    """The selected sparsities."""
    return [cell.remark for cell in table.rows[-1].cells[2:]]


def test_what_a_study_has_not_done_yet_is_missing_too():
    expected = (("a",), ("b",))
    records = [replace(one, expected=expected) for one in (dense(0.5), record(0.4))]
    assert all(cell is None for row in overview(records).rows for cell in row.cells[1:])
    (titles,) = [[one.title for one in domains(records, "digits").columns]]
    assert titles == ["method", "sparsity", "a", "b", "average"]
    assert [row.cells[2:] for row in domains(records, "digits").rows] == [
        (Mean(0.5, None, 1), None, None),
        (Mean(0.4, None, 1), None, None),
    ]


def test_runs_without_unseen_domains_have_their_table():
    alone = [replace(one, unseen=None, suite="mine", targets=()) for one in (dense(0.5), record(0.4))]
    assert [table.name for table in all_tables(alone)] == ["overview-validation"]
    assert len(all_tables([*alone, dense(0.5), record(0.4)])) > 3


def test_differences_to_the_dense_model_with_the_same_seed():
    records = [dense(0.5, seed=0), dense(0.7, seed=1), record(0.6, seed=0), record(0.75, seed=1)]
    records += [record(0.1, seed=0, method="Random")]
    for table in (plug_and_play(records), pruning(records)):
        found = column(table, "Δ", "DAP")
        assert (found.mean, found.low, found.high) == pytest.approx((0.075, 0.05, 0.1))
        assert column(table, "Δ", "Dense", None) == "—"
    assert column(pruning(records), "Δ", "Random") == Difference(pytest.approx(-0.4), None, None, 1)
    assert "Random" not in [row.series for row in plug_and_play(records).rows]
    assert plug_and_play([dense(0.5)]) is None


def test_robustness_is_dense_against_sparse():
    def finding(accuracy, series, wished, seed=0, unseen=True):
        return Finding("attacks", "pgd", "3", unseen, accuracy, "digits", ("a",), seed, series, "Dense", wished)

    found = [finding(0.2, "Dense", None), finding(0.5, "DAP", "0.8"), finding(0.6, "DAP", "0.8", seed=1)]
    table = robustness(found, "digits", "attacks")
    assert table is not None
    (row,) = table.rows
    assert row.cells[:4] == ("pgd", "3", "DAP", "80 %")
    assert row.cells[4:7] == (None, None, None)
    theirs, ours, difference = row.cells[7:]
    assert (theirs.mean, ours.mean, difference.mean) == pytest.approx((0.2, 0.55, 0.3))
    assert difference.seeds == 1
    assert robustness(found, "PACS", "attacks") is None
    assert robustness(found, "digits", "corruptions") is None
    (alone,) = robustness([finding(0.2, "Dense", None)], "digits", "attacks").rows  # nothing was pruned
    assert [None if cell is None else cell.mean for cell in alone.cells[7:]] == [0.2, None, None]
    assert robustness([replace(one, kind="corruptions") for one in found], "digits", "corruptions").rows == table.rows


def test_of_a_real_study(records, findings):
    names = [table.name for table in all_tables(records, findings.robustness)]
    assert names == [
        "overview-unseen", "overview-validation", "overview-domainbed", "suites", "domains-images", "plug-and-play",
        "pruning", "attacks-images",
    ]  # fmt: skip
    table = pruning(records)
    for series in ("Magnitude", "DAP", "DAP, α = 0"):
        ours = [one.unseen for one in records if (one.series, one.wished) == (series, "0.5")]
        theirs = [one.unseen for one in records if one.series == "Dense"]
        assert column(table, "accuracy", series, "0.5").mean == pytest.approx(fmean(ours))
        assert column(table, "Δ", series, "0.5").mean == pytest.approx(fmean(ours) - fmean(theirs))


def test_nothing_to_show():
    with pytest.raises(DapError, match="no run is finished yet"):
        overview([])
