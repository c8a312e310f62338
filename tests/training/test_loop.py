import random

import pytest
import safetensors.torch
import torch
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches, make_classifier, make_model
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.objectives import OBJECTIVES
from dap.training.loop import _NORM_BATCHES
from killable import kill_at
from killable import train as train_killable

SOURCES = {name: TensorDataset(*batch) for name, batch in make_batches(size=30).items()}
OTHERS = {name: TensorDataset(*batch) for name, batch in make_batches(size=20, seed=1).items()}


def trained(model=None, objective=None, validation=None, watch=None, checkpoint=None, on_step=None, **config):
    model = model if model is not None else make_model("convolutional")
    config = dap.TrainConfig(**{"steps": 60, "learning_rate": 1e-2, "batch_size": 8, **config})
    options = {"validation": validation, "watch": watch, "checkpoint": checkpoint, "on_step": on_step}
    return dap.train(model, SOURCES, config, objective=objective, checkpoint_every=4, **options)


def weights_of(dense):
    return dense.model.state_dict()


def same(one, other) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_learns_and_is_left_in_eval_mode():
    dense = trained(steps=150)
    assert sum(dense.losses[-10:]) < 0.9 * sum(dense.losses[:10])
    before = sum(accuracy(make_model("convolutional"), data) for data in SOURCES.values())
    assert sum(accuracy(dense.model, data) for data in SOURCES.values()) > before
    assert not any(module.training for module in dense.model.modules())


@pytest.mark.parametrize("freeze", [True, False])
def test_norms_are_frozen_on_request(freeze):
    model = trained(steps=3, freeze_norms=freeze).model
    statistics = make_model("convolutional").get_buffer("1.running_mean")
    assert torch.equal(model.get_buffer("1.running_mean"), statistics) == freeze


def test_same_seed_same_bits_whatever_was_drawn_before():
    first = weights_of(trained(steps=5))
    torch.rand(7)
    assert same(first, weights_of(trained(steps=5)))  # dropout included
    assert not same(first, weights_of(trained(steps=5, seed=1)))


def test_the_callers_randomness_goes_on():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = make_model("tied")
    torch.manual_seed(5)
    trained(model, steps=2)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_that_broke_goes_on_to_the_same_bits(name, tmp_path):
    options = {"steps": 12, "validation": OTHERS, "watch": {"target": OTHERS["domain 0"]}, "check_every": 5}
    expected = trained(make_classifier(), OBJECTIVES[name](), **options)
    for stop in (3, 10):

        def broken(stats, stop=stop):
            if stats.step == stop:
                raise OSError("the lamp went out")

        with pytest.raises(OSError, match="lamp"):
            trained(make_classifier(), OBJECTIVES[name](), checkpoint=tmp_path / "run", on_step=broken, **options)
    resumed = trained(make_classifier(), OBJECTIVES[name](), checkpoint=tmp_path / "run", **options)
    assert resumed.losses == expected.losses
    assert resumed.scores == expected.scores
    assert resumed.watched == expected.watched
    assert resumed.selected == expected.selected
    assert same(weights_of(expected), weights_of(resumed))
    assert same(expected.objective.state_dict(), resumed.objective.state_dict())


@pytest.mark.parametrize("name", ["erm", "group_dro", "mixup"])
def test_a_step_that_fails_leaves_everything_as_it_was(name, tmp_path):
    """Norm statistics and an objective's own numbers, too: the pass was half done when it failed."""
    good = make_batches()
    spoilt = {domain: (x, (y + 5 if domain == "domain 2" else y).int()) for domain, (x, y) in good.items()}
    config = dap.TrainConfig(steps=6, learning_rate=1e-2, freeze_norms=False)

    def run(sources, checkpoint=None):
        return dap.train(make_classifier(), sources, config, objective=OBJECTIVES[name](), checkpoint=checkpoint)

    with pytest.raises(DapError, match="step 4 of training: domain 'domain 2': label . is out of range"):
        run({domain: [good[domain]] * 3 + [spoilt[domain]] for domain in good}, tmp_path / "run")
    repaired = {domain: [good[domain]] for domain in good}
    resumed, expected = run(repaired, tmp_path / "run"), run(repaired)
    assert len(resumed.losses) == len(expected.losses) == 6
    assert same(weights_of(expected), weights_of(resumed))
    assert same(expected.objective.state_dict(), resumed.objective.state_dict())


def test_a_step_that_fails_leaves_buffers_of_other_layers_as_they_were():
    """Spectral norm moves its own vectors in training mode, whether norm layers are frozen or not."""
    torch.manual_seed(0)
    spectral = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(192, 8))
    model = torch.nn.Sequential(torch.nn.Flatten(), spectral, torch.nn.Linear(8, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    spoilt = {domain: (x, (y + 5).int()) for domain, (x, y) in make_batches().items()}
    trainer = dap.Trainer(model, dap.objectives.Erm(), dap.TrainConfig(steps=2, learning_rate=1e-2))
    with pytest.raises(DapError, match="out of range"):
        trainer.step(spoilt)
    assert same(before, model.state_dict())
    trainer.step(make_batches())
    assert not same(before, model.state_dict())


def test_norms_in_training_mode_see_all_domains_as_one_batch(monkeypatch):
    """However large it is: with one pass for each, a domain would be normalised by its own statistics."""
    joint = trained(make_classifier(), freeze_norms=False, steps=3)
    monkeypatch.setattr("dap.method.gradients._JOINT", 0)
    large = trained(make_classifier(), freeze_norms=False, steps=3)
    assert same(weights_of(joint), weights_of(large))


@pytest.mark.slow
def test_killed_at_random_steps_and_resumed_it_ends_with_the_same_bits(tmp_path):
    steps = sorted(random.Random(1).sample(range(4, 38), 2))
    printed = kill_at(steps, "dense", tmp_path / "run.safetensors", tmp_path / "model.safetensors")
    assert int(printed[0]) > steps[-1] - 4  # it went on, it did not start again
    expected = train_killable(None)
    assert same(safetensors.torch.load_file(tmp_path / "model.safetensors"), weights_of(expected))
    assert expected.selected > steps[0]


def test_the_best_on_source_validation_is_kept_and_the_target_has_no_say():
    dense = trained(steps=40, validation=OTHERS, check_every=5)
    best = max(dense.scores, key=lambda score: (score.mean_accuracy, -score.step))
    assert [score.step for score in dense.scores] == [1, 6, 11, 16, 21, 26, 31, 36, 40]
    assert dense.selected == best.step < 40
    assert {name: accuracy(dense.model, data) for name, data in OTHERS.items()} == best.accuracy
    watched = trained(steps=40, validation=OTHERS, check_every=5, watch=SOURCES)
    assert same(weights_of(dense), weights_of(watched))
    assert list(watched.watched) == [score.step for score in watched.scores]
    assert dense.score == best
    last = trained(steps=40)
    assert last.selected == 40
    assert not same(weights_of(dense), weights_of(last))


def test_whoever_watches_sees_every_check_and_the_best_so_far():
    told = []
    dense = trained(steps=12, validation=OTHERS, check_every=5, on_step=told.append)
    assert {stats.step: stats.validation for stats in told if stats.validation} == {
        score.step: score.accuracy for score in dense.scores
    }
    means = {score.step: score.mean_accuracy for score in dense.scores}
    assert [stats.best for stats in told] == [
        max(mean for step, mean in means.items() if step <= stats.step) for stats in told
    ]
    assert told[1].words() == f"loss {dense.losses[1]:.3f}, best validation {means[1]:.1%}"
    assert set(told[1].row()) == {"step", "loss", "learning_rate", "best"}
    trained(steps=1, on_step=told.append)
    assert set(told[-1].row()) == {"step", "loss", "learning_rate"}


def test_training_ends_when_validation_has_stopped_improving(tmp_path):
    options = {"steps": 200, "check_every": 2, "validation": OTHERS}
    whole, patient = trained(**options), trained(patience=3, **options)
    means = [score.mean_accuracy for score in whole.scores]
    ends = next(at for at in range(len(means)) if at - means.index(max(means[: at + 1])) == 3)
    assert len(patient.losses) == 1 + 2 * ends < 200
    assert patient.losses == whole.losses[: 1 + 2 * ends]
    assert patient.selected == 1 + 2 * (ends - 3)
    with pytest.raises(OSError, match="lamp"):
        trained(patience=3, checkpoint=tmp_path / "run", on_step=_lamp_goes_out, **options)
    resumed = trained(patience=3, checkpoint=tmp_path / "run", **options)
    assert (resumed.losses, resumed.selected) == (patient.losses, patient.selected)
    again = trained(patience=3, checkpoint=tmp_path / "run", **options)  # nothing is left to do
    assert same(weights_of(again), weights_of(patient))


def _lamp_goes_out(stats):
    if stats.step == 5:
        raise OSError("the lamp went out")


def test_swad_stops_when_its_valley_is_over():
    steep = {"a": TensorDataset(*make_batches(size=30, seed=9)["domain 0"])}  # soon overfitted
    dense = trained(steps=400, validation=steep, check_every=2, swad=dap.SwadConfig(tolerance=0.02), learning_rate=3e-2)
    assert len(dense.losses) < 400
    assert dense.selected < len(dense.losses)


def test_swad_takes_batches_for_norms_from_iterables():
    drawn = []

    class Counted(list):
        def __iter__(self):
            for batch in super().__iter__():
                drawn.append(1)
                yield batch

    batches = make_batches(size=6)
    sources = {name: Counted([batch] * 4) for name, batch in batches.items()}
    options = {"swad": dap.SwadConfig(), "freeze_norms": False, "check_every": 2}
    config = dap.TrainConfig(steps=30, **options)
    validation = {name: TensorDataset(*batch) for name, batch in batches.items()}
    dap.train(make_model("convolutional"), sources, config, validation=validation)
    assert len(drawn) <= len(batches) * (30 + _NORM_BATCHES + 8)  # none is drawn to be dropped
    once = {name: iter([batch] * 40) for name, batch in batches.items()}
    with pytest.raises(DapError, match="'domain 0' can be read only once: give a dataset, or freeze the norms"):
        dap.train(make_model("convolutional"), once, config, validation=validation)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    trained(steps=4, checkpoint=tmp_path / "run")
    with pytest.raises(DapError, match="belongs to a run with config learning_rate=0.01: remove it"):
        trained(steps=4, learning_rate=1e-3, checkpoint=tmp_path / "run")
    with pytest.raises(DapError, match="belongs to a run with objective kind='Erm'"):
        trained(steps=4, objective=dap.objectives.Irm(), checkpoint=tmp_path / "run")
    trained(steps=4, objective=dap.objectives.Irm(weight=2), checkpoint=tmp_path / "irm")
    with pytest.raises(DapError, match="belongs to a run with objective weight=2:"):
        trained(steps=4, objective=dap.objectives.Irm(weight=3), checkpoint=tmp_path / "irm")
    with pytest.raises(DapError, match="belongs to a run with another model"):
        trained(make_classifier(), steps=4, checkpoint=tmp_path / "run")
    dap.learn_masks(make_model("tied"), SOURCES, dap.PruneConfig(steps=1), checkpoint=tmp_path / "masks")
    with pytest.raises(DapError, match="is a file of mask learning, not of dense training: give another name"):
        trained(steps=4, checkpoint=tmp_path / "masks")
    (tmp_path / "run").write_bytes(b"not a checkpoint")
    with pytest.raises(DapError, match="is damaged or not a checkpoint"):
        trained(steps=4, checkpoint=tmp_path / "run")


def test_bf16_trains_in_float32_weights():
    engine = dap.Engine(precision=lambda: torch.autocast("cpu", torch.bfloat16))
    config = dap.TrainConfig(steps=30, learning_rate=1e-2, batch_size=8)
    model = make_classifier()
    dense = dap.train(model, SOURCES, config, objective=dap.objectives.Coral(), engine=engine)
    exact = dap.train(make_classifier(), SOURCES, config, objective=dap.objectives.Coral())
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert dense.losses != exact.losses
    assert dense.losses == pytest.approx(exact.losses, rel=0.05)


def test_a_loss_that_runs_away_is_named_and_nothing_is_lost(tmp_path):
    with pytest.raises(DapError, match=r"step \d+ of training: the loss is (nan|inf)"):
        trained(learning_rate=1e20, checkpoint=tmp_path / "run")
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"schedule": "linear"}, "schedule is 'linear'; choose constant or cosine"),
        ({"patience": 0, "validation": OTHERS}, "patience is 0; it must be at least 1"),
        ({"patience": 2}, "patience is about the validation: give held-out images"),
        ({"swad": dap.SwadConfig()}, "SWAD watches the validation loss: give held-out images"),
        ({"swad": dap.SwadConfig(converge=7), "validation": OTHERS}, "swad.converge must be"),
    ],
)
def test_wrong_options_are_named(config, message):
    with pytest.raises(DapError, match=message):
        trained(**config)


def test_a_suites_values_are_the_papers():
    pacs = dap.TrainConfig().resolved("PACS")
    assert (pacs.steps, pacs.check_every) == (5_001, 300)
    assert pacs == dap.TrainConfig().resolved() == pacs.resolved("DomainNet", "miro")
    miro = dap.TrainConfig().resolved("DomainNet", "miro")
    assert (miro.steps, miro.check_every) == (15_001, 1_000)
    vlcs = dap.TrainConfig(swad=dap.SwadConfig()).resolved("VLCS")
    assert (vlcs.check_every, vlcs.swad) == (50, dap.SwadConfig(tolerance=0.2))
    averaged = dap.TrainConfig(swad=dap.SwadConfig()).resolved("PACS")
    assert (averaged.steps, averaged.check_every, averaged.swad) == (5_001, 100, dap.SwadConfig(tolerance=0.3))
    assert dap.TrainConfig(swad=dap.SwadConfig(), steps=7).resolved("DomainNet").steps == 7


def test_tied_weights_can_be_saved(tmp_path):
    first = trained(make_model("tied"), steps=6, checkpoint=tmp_path / "run")
    again = trained(make_model("tied"), steps=6, checkpoint=tmp_path / "run")
    assert same(weights_of(first), weights_of(again))


def test_any_function_of_outputs_and_labels_trains():
    def doubled(outputs, labels):
        return 2 * dap.objectives.Erm()(outputs, labels)

    assert trained(steps=1, objective=doubled).losses[0] == pytest.approx(2 * trained(steps=1).losses[0])


def test_a_model_without_weights_to_train_is_named():
    with pytest.raises(DapError, match="no weights to train: set requires_grad"):
        trained(make_model("tied").requires_grad_(False))


def test_averaged_weights_are_scored_themselves():
    dense = trained(steps=40, validation=OTHERS, check_every=2, swad=dap.SwadConfig())
    assert dense.score is not None
    assert dense.score.accuracy == {name: accuracy(dense.model, data) for name, data in OTHERS.items()}
    assert dense.score.step == dense.selected
