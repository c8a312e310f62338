import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import agreement
import baselines
import claims
import convolutions
import corruptions
import cost
import dap
import files
import latency
import pages
import scoring
import step
import tuning
from dap.config import TrainConfig
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.evaluation.bits import pack_bits
from dap.report import Record
from dap.report.findings import Finding, Point
from dap.runs import TrainSpec, train_dense
from dap.runs.evaluating import content_of
from dap.runs.folder import read_spec
from dap.runs.opening import open_dense
from dap.specs import PruneSpec, folder_name
from small_studies import small_suite


@pytest.mark.slow
def test_step_benchmark_on_a_small_model():
    result = step.compare("resnet18", pixels=32, images=2, repeats=2)
    assert set(result) == {
        "step_over_dense", "step_over_split_dense", "sensitivity_over_ordinary", "coral_sensitivity_over_ordinary",
        "naive_over_step", "state_bytes_per_weight",
    }  # fmt: skip
    assert 1 < result["step_over_dense"] < 50  # so small a batch costs little, and gates cost the same for any
    assert 1 < result["step_over_split_dense"] < 6
    for name in ("sensitivity_over_ordinary", "coral_sensitivity_over_ordinary"):
        assert 1.2 < result[name] < 4  # a backward pass for each of three domains
    assert result["naive_over_step"] > 2
    assert 17.9 < result["state_bytes_per_weight"] <= 18.5


@pytest.mark.slow
def test_convolutions_benchmark_on_a_small_layer_and_model():
    assert convolutions.compare_layer(16, 512, 512, 3, 1, 2, repeats=3) > 1
    found = convolutions.compare_steps("resnet18", 32, 2, repeats=1)
    assert list(found) == [f"resnet18, 32 pixels, 2 images, {kind}" for kind in ("training", "mask learning")]


@pytest.mark.slow
def test_scoring_benchmark_on_a_small_model():
    result = scoring.compare("resnet18", repeats=1)
    assert set(result) == {"over_torch_prune", "peak_copies", "torch_peak_copies", "same_masks"}
    assert result["same_masks"] == 1
    assert result["over_torch_prune"] < 0.5
    assert result["peak_copies"] < 3


@pytest.mark.slow
def test_the_comparison_of_methods_on_a_small_scale(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "STEPS", {"dense": 2, "masks": 2, "tuning": 1})
    monkeypatch.setattr(baselines, "DOMAINS", ("plain",))
    monkeypatch.setattr(baselines, "SPARSITIES", (0.5,))
    results = dict.fromkeys([("plain", 0), ("plain", 1)], baselines.run(tmp_path, "plain", 0))
    table = baselines.table(results, [0, 1], "unseen")
    assert [line.split("|")[1].strip() for line in table.splitlines()[4:]] == [
        baselines.TITLES[name] for name in baselines.ORDER
    ]
    assert "± 0.0" in table
    assert "| DAP |" in baselines.by_target(results, [0, 1], 0.5)


@pytest.mark.slow
def test_corruptions_benchmark_on_a_small_scale():
    result = corruptions.compare("resnet18", images=4, pixels=32, severities=(1,))
    assert set(result) == {"second_model_over_forward", "first_over_second"}
    assert result["first_over_second"] > 3  # the first has them made
    assert result["second_model_over_forward"] < 10


@pytest.mark.slow
def test_latency_benchmark_on_a_small_model():
    result = latency.compare("resnet18", pixels=32, steps=2, repeats=8)
    assert set(result) == {
        "flops_ratio", "parameter_ratio", "max_abs_difference", "speedup_batch_1", "speedup_batch_8",
        "torch_speedup_batch_1",
    }  # fmt: skip
    assert result["flops_ratio"] <= 0.5
    assert result["max_abs_difference"] < 1e-4
    assert all(result[name] > 0.5 for name in result if "speedup" in name)


def test_a_sparse_file_of_resnet_50_is_as_small_as_promised():
    result = files.compare()
    assert result["fp32"] <= 0.24
    assert result["fp16"] < 0.28
    assert set(result) == {"fp32", "fp16", "bf16", "load_over_dense"}


def test_claims_are_measured_on_the_same_trials_and_images():
    def record(method, wished, right, target, seed, validation=0.5):
        bits, share = pack_bits(torch.tensor(right)), sum(right) / len(right)
        options = {"dense.objective": "erm"}
        about = ("run", method, options, "PACS", (target,), seed, wished, 0.0, validation, share)
        return Record(*about, series=method, dense="Dense", right={target: bits})

    yes, no = [True] * 3 + [False], [True] * 2 + [False] * 2
    records = [record("Dense", None, no, target, seed) for target, seed in (("a", 0), ("b", 0), ("a", 1))]
    records += [record("DAP", "0.8", yes, "a", 0, 0.6), record("DAP", "0.8", no, "a", 1)]
    records += [record("DAP, raw masks", "0.8", no, "a", 0), record("Magnitude", "0.8", [False] * 4, "a", 0)]
    records += [record("Movement (weights move)", "0.8", no, "a", 0)]
    asked = {claim.text: claim for claim in claims.claims(records, [])}
    found = {text: claims.measure(claim) for text, claim in asked.items()}
    claim = asked["at 80 %, too"]
    kept = claims.measure(claim)
    assert kept is not None
    assert (kept.mean, kept.seeds) == (12.5, 2)  # b has no DAP
    assert kept.low <= 0 < 12.5 < kept.high
    assert claims.on_sources(claim) == pytest.approx(5)
    assert claims.on_sources(asked["at 80 %, DAP keeps 98 % of the dense accuracy"]) == pytest.approx(6)
    assert claims.by_domain(claim) == 12.5
    more = {**claim.ours, (("b",), 0): claims.Result(0.0, {})}  # 50 points below, with one seed
    assert claims.by_domain(replace(claim, ours=more)) == (12.5 - 50) / 2
    asks = [replace(claim, least=least) for least in (kept.low, 5, 13, kept.high + 1)]
    open_ = ["holds partly: on average; open", "does not hold on average; open"]
    assert [claims.verdict(ask, replace(kept, seeds=4)) for ask in asks] == ["holds", *open_, "does not hold here"]
    assert [claims.verdict(ask, kept) for ask in asks] == [open_[0], *open_, open_[1]]  # two trials are few
    above = replace(claim, least=1), replace(kept, low=2.0)  # and one of the two trials, which has 0, is not
    assert [claims.verdict(above[0], replace(above[1], seeds=seeds)) for seeds in (5, 6)] == [open_[0], "holds"]
    beaten = asked["at 80 %, DAP beats magnitude by 20 points"]
    assert claims.verdict(beaten, claims.measure(beaten)) == "open: one trial"
    assert found["at 80 %, averaged masks beat raw ones"].mean == 25
    assert found["at 80 %, DAP beats movement, whose weights move"].mean == 25
    assert found["at 90 %, raw masks keep 98 % of it"] is None
    assert claims.on_sources(asked["at 90 %, raw masks keep 98 % of it"]) is None
    right = {  # under an attack: in all, the first two are seen by AutoAttack
        ("Dense", None, "pgd"): [True, True, True, False],
        ("DAP", "0.8", "pgd"): [False, True, True, True],
        ("Dense", None, "auto"): [True, False],
        ("DAP", "0.8", "auto"): [False, True],
    }
    attacked = [
        Finding(
            "autoattack" if case == "auto" else "attacks", case, "3", unseen, accuracy, "PACS", ("a",), 0, method,
            "Dense", wished, right={"a" if unseen else "b": pack_bits(torch.tensor(images))},
        )
        for (method, wished, case), images in right.items()
        for unseen, accuracy in ((True, sum(images) / 4), (False, 0.3 if wished else 0.2))
    ]  # fmt: skip
    asked = {claim.text: claim for claim in claims.claims(records, attacked)}
    assert claims.measure(asked["under PGD at 2/255, 80 % sparse is 8 points ahead"]).mean == pytest.approx(0)
    assert claims.on_sources(asked["under PGD at 2/255, 80 % sparse is 8 points ahead"]) == pytest.approx(10)
    assert claims.measure(asked["under AutoAttack at 2/255, it is ahead, too"]).mean == pytest.approx(0)
    unseen, sources = claims.survivors(records, attacked)
    assert "of 2 unseen images the dense model has 2 right under PGD and 1 under AutoAttack" in unseen
    assert "the sparse one 1 and 1" in unseen
    assert "of 2 source images" in sources


def test_over_all_objectives_the_presets_path_counts_alone():
    def record(method, wished, accuracy, objective, **path):
        options = {"dense.objective": objective, **{f"prune.paced.{name}": value for name, value in path.items()}}
        return Record("run", method, options, "PACS", ("a",), 0, wished, 0.0, accuracy, accuracy)

    preset = dap.PruneConfig().resolved().paced
    path = {"start": preset.start, "curve": preset.curve}
    records = [record("Dense", None, 0.5, name) for name in ("erm", "coral", "miro")]
    records += [record("DAP", "0.8", 0.6, "erm", **path), record("DAP", "0.8", 0.5, "coral", **path)]
    records += [record("DAP", "0.8", 0.9, "miro", curve=1.5), record("DAP", "0.8", 0.9, "erm", start=2.0, curve=2.5)]
    asked = {claim.text: claims.measure(claim) for claim in claims.pooled(records)}
    found = asked["at 80 %, DAP is at least as accurate as dense"]
    assert (found.mean, found.seeds) == (pytest.approx(5), 2)
    assert asked["at 40 %, DAP is at least as accurate as dense"] is None


def test_a_dense_model_is_compared_with_its_neighbours():
    def point(step, unseen, validation, target="a", sparsity=0.0):
        return Point("PACS", "Dense", (target,), 0, step, sparsity, unseen, validation)

    # The second check is chosen; the last is too far from it.
    checks = [point(step, unseen, 0.9 if step == 101 else 0.8) for step, unseen in ((1, 0.3), (101, 0.5), (501, 0.4))]
    others = [point(601, 0.0, 0.7), point(101, 0.9, 0.95, sparsity=0.8), point(1, 0.5, 0.5, target="b")]
    spread, offset, trials = claims.yardstick([*checks, *others])
    assert (spread, offset, trials) == (pytest.approx(100 * 0.005**0.5), pytest.approx(-15), 1)
    assert claims.yardstick(others) is None


def test_the_page_of_claims_is_what_the_kept_results_say(tmp_path):
    results = Path(__file__).parents[1] / "docs" / "results"
    (tmp_path / "claims.md").write_text(claims.table(results / "pacs")[0])
    others = ("preset", "start-2", "112-pixels", "resnet50")
    for name in others:
        (tmp_path / f"claims-{name}.md").write_text(claims.table(results / "pacs" / name, measured=True)[0])
    (tmp_path / "claims-pooled.md").write_text(claims.pooled_table([results / "pacs", results / "pacs" / "preset"])[0])
    page = shutil.copy(results / "pacs-claims.md", tmp_path / "page.md")
    assert pages.fill(page, tmp_path) == (["claims-pooled", "claims", *(f"claims-{name}" for name in others)], [])
    assert page.read_text() == (results / "pacs-claims.md").read_text()


def test_kept_results_are_what_their_specs_ask_for():
    """A preset or an option that changes must not turn a kept run into another one: its spec still has its id."""
    kept = [file.parent for file in (Path(__file__).parents[1] / "docs" / "results").rglob("spec.json")]
    assert kept
    for folder in kept:
        assert folder_name(read_spec(folder)) == folder.name
        assert read_spec(folder).resolved() == read_spec(folder)
        if folder.name.startswith("evaluate"):
            found = json.loads((folder / "result.json").read_text())
            assert found["content"] == content_of(folder.parent / found["run"])


def test_pages_are_filled_from_the_files_of_a_report(tmp_path):
    (files := tmp_path / "pacs-files").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "results").mkdir()
    page = tmp_path / "results" / "page.md"
    (files / "first.md").write_text("| a |\n|---|\n")
    (files / "chart.svg").write_text("<svg/>")
    text = (
        "Words.\n\n<!-- first -->\nold\n<!-- end -->\n\n![x](../images/pacs-chart.svg) ![y](../images/demo-other.svg)\n"
    )
    page.write_text(text)
    assert pages.fill(page, files) == (["first"], ["chart"])
    assert page.read_text() == text.replace("\nold\n", "\n\n| a |\n|---|\n\n")
    assert (tmp_path / "images" / "pacs-chart.svg").read_text() == "<svg/>"
    before = page.read_text()
    assert pages.fill(page, files)
    assert page.read_text() == before
    page.write_text(before + "<!-- part/third --><!-- end -->")  # of another report, in a folder of its own
    (files / "part").mkdir()
    (files / "part" / "third.md").write_text("| b |\n")
    assert pages.fill(page, files) == (["first", "part/third"], ["chart"])
    assert page.read_text() == before + "<!-- part/third -->\n\n| b |\n\n<!-- end -->"
    page.write_text(before + "<!-- second --><!-- end -->")
    with pytest.raises(DapError, match="second.md, which is not there"):
        pages.fill(page, files)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A little training, for scripts that look at one."""
    folder = tmp_path_factory.mktemp("runs") / "dense"
    config = TrainConfig(steps=4, batch_size=4, freeze_norms=False, learning_rate=1e-3)
    spec = TrainSpec(str(small_suite()), ("rotated",), pixels=16, backbone="small_resnet", weights=None, train=config)
    train_dense(spec, folder)
    return folder


def last_line(script, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    threads = torch.get_num_threads()  # scripts set it for their whole process, which others share here
    try:
        script.main()
    finally:
        torch.set_num_threads(threads)
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_two_estimates_of_the_sensitivity_agree_the_more_the_longer(dense, monkeypatch, capsys):
    monkeypatch.setattr(agreement, "AT", (1, 12))
    found = last_line(agreement, [dense, "--batch-size", 2, 16], monkeypatch, capsys)
    assert list(found) == [f"{size} images, {updates} updates" for size in (2, 16) for updates in (1, 12)]
    assert found["2 images, 1 updates"] < found["2 images, 12 updates"] < found["16 images, 12 updates"] <= 1
    assert found["16 images, 1 updates"] < found["16 images, 12 updates"]


def test_options_are_compared_on_the_sources_alone(dense, monkeypatch, capsys, tmp_path):
    arguments = ["--set", "steps=25", "--set", "alpha=0.0", "--pgd", 4, "--recalibrated", "--batch-size", 4]
    found = last_line(tuning, [dense, *arguments, "--out", tmp_path / "rows"], monkeypatch, capsys)
    assert json.loads((tmp_path / "rows").read_text()) == found
    assert (found["targets"], found["settings"]) == (["rotated"], {"batch_size": 4, "steps": 25, "alpha": 0.0})
    assert set(found["rows"]["dense"]) == {"validation", "under PGD", "recalibrated"}
    assert {"0.2", "0.8"} < set(found["rows"])
    assert all(0 <= row["under PGD"] <= 100 for row in found["rows"].values())


def test_masks_are_tried_on_a_source_they_were_not_learnt_on(dense, monkeypatch, capsys):
    learnt_on = []
    learn_masks = dap.learn_masks
    monkeypatch.setattr(
        dap, "learn_masks", lambda *args, **options: learnt_on.append(set(args[1])) or learn_masks(*args, **options)
    )
    opened = open_dense(PruneSpec(str(dense)), Path(dense))
    mine = {name: 100 * accuracy(opened.model, data) for name, data in opened.sources.held_out.items()}
    values = list(mine.values())
    odd = next(name for name, value in mine.items() if values.count(value) == 1)  # no other can be taken for it
    arguments = ["--set", "steps=10", "--batch-size", 4]
    found = last_line(tuning, [dense, *arguments, "--without", odd], monkeypatch, capsys)
    others = set(mine) - {odd}
    assert (found["without"], learnt_on) == (odd, [others])
    assert found["rows"]["dense"]["left out"] == pytest.approx(mine[odd], abs=0.01)
    assert found["rows"]["dense"]["validation"] == pytest.approx(sum(mine[name] for name in others) / 2, abs=0.01)
    assert "left out" in found["rows"]["0.2"]
    with pytest.raises(SystemExit):
        last_line(tuning, [dense, "--without", "rotated"], monkeypatch, capsys)
    assert "the sources are outline, plain, textured" in capsys.readouterr().err


@pytest.mark.slow
def test_cost_benchmark_on_a_small_scale(monkeypatch, capsys):
    found = last_line(cost, ["--pixels", 32, "--images", 2, "--repeats", 2], monkeypatch, capsys)
    assert 0.5 < found["run_over_training"] < 10
