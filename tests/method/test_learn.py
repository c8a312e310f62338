import os
import random
import signal
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches, make_model
from dap.errors import DapError
from dap.evaluation import accuracy
from killable import CONFIG, SOURCES, kill_at, learn, start, wait_for_step


@pytest.fixture(scope="module")
def whole() -> dap.MaskPath:
    return learn(None)


def test_killed_at_random_steps_and_resumed_it_ends_with_the_same_bits(tmp_path, whole):
    checkpoint, masks = tmp_path / "run.safetensors", tmp_path / "masks.safetensors"
    steps = sorted(random.Random(0).sample(range(2, 38), 2))
    printed = kill_at(steps, "masks", checkpoint, masks)
    assert int(printed[0]) > steps[-1] - CONFIG.resolved().steps // 10  # it went on, it did not start again
    assert dap.Masks.load(masks) == whole.masks

    resumed = learn(str(checkpoint))  # finished: gives its result without a step
    assert resumed.history == whole.history
    assert torch.equal(resumed.pruner.ranking(), whole.pruner.ranking())
    assert resumed.snapshots == whole.snapshots
    assert resumed.best == whole.best


def test_ctrl_c_gives_a_usable_result_that_can_be_resumed(tmp_path, whole):
    checkpoint, masks = tmp_path / "run.safetensors", tmp_path / "masks.safetensors"
    process = start("masks", checkpoint, masks, 0.2)
    wait_for_step(process, 4)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 0
    assert output.split()[-1] == "interrupted"
    assert dap.Masks.load(masks).total == whole.masks.total
    resumed = learn(str(checkpoint))
    assert not resumed.interrupted
    assert resumed.masks == whole.masks


def test_history_and_snapshots(whole):
    assert [row["step"] for row in whole.history] == list(range(1, 41))
    assert set(whole.snapshots) == {0.2, 0.5, 0.8}
    for milestone, snapshot in whole.snapshots.items():
        row = whole.history[snapshot.step - 1]
        assert snapshot.sparsity == pytest.approx(row["sparsity"])
        assert row["sparsity"] >= milestone > whole.history[snapshot.step - 2]["sparsity"]
        assert (snapshot.relaxed_loss, snapshot.hard_loss) == (row["loss"], row["hard_loss"])
        assert set(snapshot.validation) == set(SOURCES)
    evaluated = [row for row in whole.history if "validation" in row]
    assert {7, 14, 21, 28, 35} <= {row["step"] for row in evaluated}
    means = [sum(row["validation"].values()) / len(row["validation"]) for row in evaluated]
    assert whole.best is not None
    assert whole.best.accuracy == pytest.approx(max(means))


def test_a_snapshot_says_what_its_masks_do(whole):
    snapshot = whole.snapshots[0.5]
    sparse = dap.bake(make_model("convolutional"), snapshot.masks)
    for domain, data in SOURCES.items():
        assert snapshot.validation[domain] == accuracy(sparse, data)


def test_stops_at_a_wished_sparsity():
    config = dap.PruneConfig(steps=60, target_sparsity=0.9, stop_at=0.5, batch_size=6)
    path = dap.learn_masks(make_model("convolutional"), SOURCES, config)
    sparsities = [row["sparsity"] for row in path.history]
    assert len(sparsities) < 60
    assert sparsities[-1] >= 0.5 > sparsities[-2]
    assert path.masks.sparsity == pytest.approx(sparsities[-1])
    assert not path.interrupted


def test_any_iterable_of_batches():
    sources = {name: [batch] for name, batch in make_batches().items()}
    path = dap.learn_masks(make_model("tied"), sources, dap.PruneConfig(steps=5))
    assert len(path.history) == 5
    assert path.masks_at(0.8).sparsity == pytest.approx(0.8, abs=1e-3)


def test_bad_input_is_named(tmp_path):
    model = make_model("convolutional")
    with pytest.raises(DapError, match="no source domains"):
        dap.learn_masks(model, {}, CONFIG)
    with pytest.raises(DapError, match="compares domains, and there is only 1"):
        dap.learn_masks(model, dict([*SOURCES.items()][:1]), CONFIG, on_step=lambda stats: pytest.fail("a step"))
    with pytest.raises(DapError, match="milestone 0.95 is out of reach.*target_sparsity=0.9"):
        dap.learn_masks(model, SOURCES, CONFIG, milestones=(0.5, 0.95))
    with pytest.raises(DapError, match="validation of domain 'x' is empty or can be read only once"):
        dap.learn_masks(model, SOURCES, CONFIG, validation={"x": iter([])})
    with pytest.raises(DapError, match="checkpoint_every is 0"):
        dap.learn_masks(model, SOURCES, CONFIG, checkpoint_every=0)
    empty = TensorDataset(torch.empty(0, 3, 8, 8), torch.empty(0).long())
    with pytest.raises(DapError, match="'nowhere' is empty"):
        dap.learn_masks(model, {**SOURCES, "nowhere": empty}, CONFIG)


def test_a_checkpoint_of_another_model_or_run_is_refused(tmp_path):
    checkpoint = tmp_path / "run.safetensors"
    dap.learn_masks(make_model("tied"), SOURCES, dap.PruneConfig(steps=2), checkpoint=checkpoint)
    other = make_model("tied")
    with torch.no_grad():
        other.get_parameter("head.bias").add_(1)
    with pytest.raises(DapError, match=r"belongs to another objective \(kind='Erm'\): remove it"):
        dap.learn_masks(
            make_model("tied"), SOURCES, dap.PruneConfig(steps=2), checkpoint=checkpoint, objective=dap.objectives.Irm()
        )
    with pytest.raises(DapError, match=r"belongs to another model \(head\.bias differs\)"):
        dap.learn_masks(other, SOURCES, dap.PruneConfig(steps=2), checkpoint=checkpoint)
    fewer = {name: SOURCES[name] for name in list(SOURCES)[:2]}
    with pytest.raises(DapError, match="belongs to a run on domains"):
        dap.learn_masks(make_model("tied"), fewer, dap.PruneConfig(steps=2), checkpoint=checkpoint)
    with pytest.raises(DapError, match=r"belongs to a run with milestones=\[\]: ask for the same, or remove it"):
        dap.learn_masks(make_model("tied"), SOURCES, dap.PruneConfig(steps=2), milestones=(0.5,), checkpoint=checkpoint)
    with pytest.raises(DapError, match="steps=2, this pruner has 3"):
        dap.learn_masks(make_model("tied"), SOURCES, dap.PruneConfig(steps=3), checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    with pytest.raises(DapError, match="damaged"):
        dap.learn_masks(make_model("tied"), SOURCES, dap.PruneConfig(steps=2), checkpoint=checkpoint)


def test_an_error_loses_nothing_that_was_computed(tmp_path):
    checkpoint = tmp_path / "run.safetensors"
    good = make_batches()
    bad = {name: (x, y + 5) for name, (x, y) in good.items()}
    sources = {name: [good[name]] * 4 + [bad[name]] for name in good}
    with pytest.raises(DapError, match="out of range"):
        dap.learn_masks(make_model("tied"), sources, dap.PruneConfig(steps=9), checkpoint=checkpoint)
    repaired = {name: [good[name]] for name in good}
    steps = []
    path = dap.learn_masks(
        make_model("tied"),
        repaired,
        dap.PruneConfig(steps=9),
        checkpoint=checkpoint,
        on_step=lambda stats: steps.append(stats.step),
    )
    assert steps == [5, 6, 7, 8, 9]
    expected = dap.learn_masks(make_model("tied"), repaired, dap.PruneConfig(steps=9))
    assert path.masks_at(0.5) == expected.masks_at(0.5)


class Flaky(TensorDataset):
    """Held-out images that cannot be read at one evaluation."""

    broken = False

    def __getitem__(self, index):
        if self.broken:
            raise OSError("disk gone")
        return super().__getitem__(index)


def test_an_error_in_validation_loses_no_evaluation(tmp_path):
    checkpoint = tmp_path / "run.safetensors"
    flaky = Flaky(*SOURCES["domain 0"].tensors)
    options = {"milestones": (0.3, 0.6), "validation": {"domain 0": flaky}, "checkpoint_every": 4}

    def break_soon(stats):
        Flaky.broken = stats.sparsity > 0.4

    with pytest.raises(OSError, match="disk gone"):
        dap.learn_masks(
            make_model("convolutional"), SOURCES, CONFIG, checkpoint=checkpoint, on_step=break_soon, **options
        )
    Flaky.broken = False
    resumed = dap.learn_masks(make_model("convolutional"), SOURCES, CONFIG, checkpoint=checkpoint, **options)
    expected = dap.learn_masks(make_model("convolutional"), SOURCES, CONFIG, **options)
    assert resumed.history == expected.history
    assert resumed.snapshots == expected.snapshots


def test_two_milestones_in_one_step():
    config = dap.PruneConfig(steps=30, target_sparsity=0.9, batch_size=6, average=0.0)
    path = dap.learn_masks(make_model("convolutional"), SOURCES, config, milestones=(0.5, 0.5001))
    one, other = path.snapshots[0.5], path.snapshots[0.5001]
    assert (one.step, one.masks) == (other.step, other.masks)
    assert one.cut is not None
    assert other.cut is not None
    assert one.cut.kept >= other.cut.kept


def test_raw_masks_are_those_of_a_run_without_averaging(tmp_path):
    config = dap.PruneConfig(steps=30, target_sparsity=0.9, batch_size=6)
    options = {"milestones": (0.3, 0.6, 0.8), "checkpoint": tmp_path / "run.safetensors"}
    path = dap.learn_masks(make_model("convolutional"), SOURCES, config, **options)
    alone = dap.learn_masks(
        make_model("convolutional"), SOURCES, replace(config, average=0.0), milestones=options["milestones"]
    )
    assert path.raw == {milestone: shot.cut for milestone, shot in alone.snapshots.items()}
    assert path.raw[0.6] != path.snapshots[0.6].cut
    assert not alone.raw  # they are its snapshots
    assert dap.learn_masks(make_model("convolutional"), SOURCES, config, **options).raw == path.raw  # from the file


def test_the_end_is_always_evaluated():
    config = dap.PruneConfig(steps=6, batch_size=6)
    path = dap.learn_masks(make_model("convolutional"), SOURCES, config, validation=SOURCES)
    assert path.best is not None
    assert path.best.step == 6


def test_best_prefers_the_sparser_of_equals():
    # A model whose every weight is used but whose logits never change: all masks are equally good.
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    torch.nn.init.zeros_(model[1].weight)
    config = dap.PruneConfig(steps=30, target_sparsity=0.9, batch_size=6)
    path = dap.learn_masks(model, SOURCES, config, validation=SOURCES, eval_every=5)
    assert path.best is not None
    assert path.best.sparsity == max(row["sparsity"] for row in path.history if "validation" in row)


def test_what_is_watched_is_told_and_chooses_nothing():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    config = dap.PruneConfig(steps=6, target_sparsity=0.9, batch_size=6)
    told = []
    options = {"validation": SOURCES, "eval_every": 2}
    path = dap.learn_masks(
        model, SOURCES, config, watch={"unseen": next(iter(SOURCES.values()))}, on_step=told.append, **options
    )
    unwatched = dap.learn_masks(model, SOURCES, config, **options)
    assert [stats.step for stats in told if stats.watched] == [2, 4, 6]
    assert told[1].watched["unseen"] == next(iter(told[1].validation.values()))
    assert [row for row in path.history if row.pop("watched", True)] == unwatched.history
    assert path.best.step == unwatched.best.step


def test_a_milestone_that_was_not_reached_is_named():
    config = dap.PruneConfig(steps=20, target_sparsity=0.9, stop_at=0.3)
    path = dap.learn_masks(make_model("convolutional"), SOURCES, config, milestones=(0.2, 0.8))
    assert path.snapshots.get(0.8) is None
    with pytest.raises(DapError, match=r"milestone 0\.8 was not reached, the highest that was is 0\.2: path.masks_at"):
        path.snapshots[0.8]
    path.snapshots.clear()
    with pytest.raises(DapError, match=r"milestone 0\.8 was not reached, none was"):
        path.snapshots[0.8]


def test_a_milestone_that_would_empty_a_layer_is_refused_at_once():
    config = dap.PruneConfig(steps=5, target_sparsity=0.9999)
    with pytest.raises(DapError, match=r"sparsity 0\.9999 would not leave every layer a weight"):
        dap.learn_masks(make_model("convolutional"), SOURCES, config, milestones=(0.5, 0.9999), on_step=pytest.fail)
