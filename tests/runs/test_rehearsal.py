"""What is expected of a run, against what it takes."""

import time
from dataclasses import replace

import pytest

from dap.config import FinetuneConfig, PruneConfig, SwadConfig, TrainConfig
from dap.data.cache import cache_folder
from dap.runs import PruneSpec, TrainSpec, prune_dense, train_dense
from dap.runs.estimates import Costs, expect, kind_of
from dap.runs.rehearsal import rehearse
from dap.specs import BestSpec, EvaluateSpec, ModelSpec
from dap.studies.rehearsal import rehearse_study
from data.small_suites import make_folder
from small_studies import make_study

DENSE = TrainSpec(
    "digits", ("plain",), backbone="small_resnet", weights=None, train=TrainConfig(20, 1e-3, freeze_norms=False)
)
COSTS = Costs(
    step={"training": 2.0},
    opening=1.0,
    image=0.01,
    held_out=100,
    unseen=50,
    domains=4,
    pixels=32,
    decoding=7.0,
    cache=11,
    state=1000,
    model=100,
    masks=10,
    memory=5,
    gpu_memory=0,
)


def test_the_sum_is_right_for_training():
    spec = replace(DENSE, train=replace(DENSE.train, steps=601, check_every=300))
    found = expect(spec, COSTS)
    # Evaluations after steps 1, 301 and 601, of 150 images each, and of the 50 unseen ones at the end.
    assert found.seconds == {"opening": 1.0, "training": 1202.0, "evaluation": pytest.approx(5.0)}
    assert (found.disk, found.decoding, found.cache) == (1100, 7.0, 11)


def test_the_sum_is_right_for_pruning():
    costs = replace(COSTS, step={"scoring": 0.5, "fine-tuning": 2.0})
    spec = PruneSpec(DENSE, "dss", (0.5, 0.8), batches=10, finetune=FinetuneConfig(steps=31, check_every=10))
    found = expect(spec, costs)
    # Dense and two sparse models of 150 images, and for each of the two evaluations of 100 after steps 1, 11, 21, 31.
    evaluation = pytest.approx(4.5 + 8.0)
    assert found.seconds == {"opening": 1.0, "scoring": 5.0, "fine-tuning": 124.0, "evaluation": evaluation}
    assert found.disk == 1000 + 2 * (10 + 100)
    learnt = expect(PruneSpec(DENSE, prune=PruneConfig(steps=200)), replace(COSTS, step={"mask learning": 3.0}))
    assert learnt.seconds["mask learning"] == 600.0
    assert learnt.disk == 1000 + 5 * 10
    both = expect(PruneSpec(DENSE, prune=PruneConfig(steps=200), raw=True), replace(COSTS, step={"mask learning": 3.0}))
    assert both.seconds["evaluation"] == pytest.approx((1 + 2 * 5) * 1.5)
    assert both.disk == 1000 + 2 * 5 * 10
    looked = replace(COSTS, step={})
    assert expect(EvaluateSpec(spec), looked).seconds["evaluation"] == pytest.approx(4.5)  # dense, too
    alone = EvaluateSpec(spec, ("0.8",), with_dense=False)
    assert expect(alone, looked).seconds["evaluation"] == pytest.approx(1.5)
    attacked = replace(alone, attacks=("pgd",), images=10)  # 160 passes over 10 of one unseen domain and three sources
    assert expect(attacked, looked).seconds["evaluation"] == pytest.approx(1.5 + 160 * 40 * 0.01)
    assert expect(EvaluateSpec(DENSE), looked).seconds["evaluation"] == pytest.approx(1.5)
    assert expect(BestSpec((DENSE,)), looked).seconds == {}


def test_the_number_of_evaluations_is_that_of_training(tmp_path):
    for steps, every in ((1, 3), (4, 3), (5, 3)):
        spec = replace(DENSE, train=replace(DENSE.train, steps=steps, check_every=every, batch_size=2))
        done = train_dense(spec, tmp_path / str(steps))
        costs = replace(COSTS, image=1.0, held_out=1, unseen=0)
        assert expect(spec, costs).seconds["evaluation"] == len(done["validation"])


@pytest.mark.parametrize(
    "spec", [DENSE, pytest.param(PruneSpec(DENSE, prune=PruneConfig(steps=20)), marks=pytest.mark.slow)]
)
def test_expected_and_taken(spec, tmp_path):
    """Within a factor of three, on a machine that does other things too; disk within a fifth."""
    if isinstance(spec, PruneSpec):
        train_dense(replace(DENSE, train=replace(DENSE.train, steps=2)), tmp_path / "dense")
        spec = replace(spec, dense=str(tmp_path / "dense"))
    found = rehearse(spec)
    start = time.perf_counter()
    (train_dense if isinstance(spec, TrainSpec) else prune_dense)(spec, tmp_path / "run")  # pyright: ignore
    taken = time.perf_counter() - start
    assert taken / 3 < sum(found.seconds.values()) < taken * 3
    files = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert found.disk == pytest.approx(files, rel=0.2)
    assert 10**8 < found.memory < 10**11


@pytest.mark.parametrize(  # those that learn beside the model, or step twice
    "objective", ["miro", *(pytest.param(name, marks=pytest.mark.slow) for name in ("erm", "cdann", "mldg"))]
)
def test_objectives_can_be_rehearsed(objective):
    dense = replace(DENSE, objective=objective, train=replace(DENSE.train, batch_size=4, swad=SwadConfig()))
    assert rehearse(dense).seconds["training"] > 0
    assert rehearse(PruneSpec(dense, prune=PruneConfig(steps=20, batch_size=4))).seconds["mask learning"] > 0


def test_images_are_not_all_decoded_for_a_rehearsal(tmp_path, monkeypatch):
    monkeypatch.setenv("DAP_CACHE", str(tmp_path / "cache"))
    make_folder(tmp_path / "pets", {domain: {"cat": 10, "dog": 10} for domain in ("day", "dusk", "night")})
    spec = replace(DENSE, suite=str(tmp_path / "pets"), targets=("night",), pixels=16)
    found = rehearse(spec)
    assert found.cache == 60 * 3 * 16 * 16
    assert found.decoding > 0
    assert not cache_folder().exists()
    train_dense(spec, tmp_path / "run")
    assert (found := rehearse(spec)).cache == found.decoding == 0


def test_runs_of_one_kind():
    other = replace(DENSE, targets=("rotated",), train=replace(DENSE.train, seed=3, steps=7, learning_rate=1.0))
    assert kind_of(DENSE) == kind_of(other)
    assert kind_of(DENSE) != kind_of(replace(DENSE, objective="mldg"))
    assert kind_of(PruneSpec(DENSE)) == kind_of(PruneSpec(other, prune=PruneConfig(steps=9, alpha=2.0)))
    assert kind_of(PruneSpec(DENSE)) != kind_of(PruneSpec(DENSE, "taylor"))
    own = ModelSpec("a.b:c", "digits")
    assert kind_of(PruneSpec(own)) != kind_of(PruneSpec(replace(own, model="a.b:d")))


def test_a_study_is_measured_once_for_every_kind(tmp_path):
    study, told = make_study(tmp_path), []
    found = rehearse_study(study, list(study.runs), 2, lambda run, number, count: told.append((number, count)))
    assert told == [(1, 3), (2, 3), (3, 3)]  # training, magnitude, DAP
    assert found.runs == 6
    decoding = found.seconds - sum(found.work.values()) / 2
    assert decoding > 0 if found.cache else decoding == pytest.approx(0, abs=1e-9)
    assert list(tmp_path.iterdir()) == [tmp_path / "study.yaml"]
    nothing = rehearse_study(study, [], 2)
    assert (nothing.runs, nothing.seconds, nothing.memory) == (0, 0, 0)
