"""SWAD against its definition, told with the whole history at hand."""

import json
import signal
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from dap.config import SwadConfig, TrainConfig
from dap.models.classifier import Classifier
from dap.objectives import Coral
from dap.training import train
from dap.training.swad import Average, Swad


def valley(losses: list[float], config: SwadConfig) -> range | None:
    """The places of the segments to average; None: the loss never converged."""
    for start in range(len(losses) - config.converge + 1):
        window = losses[start : start + config.converge]
        if window[0] == min(window):
            break
    else:
        return None
    threshold = max(sum(window) / config.converge, window[0]) * (1 + config.resolved().tolerance)  # a mean is no less
    first = start
    while first > max(0, start - (config.patience - config.converge)) and losses[first - 1] <= threshold:
        first -= 1
    last = start
    while last < len(losses) and min(losses[last : last + config.patience]) <= threshold:
        last += 1
    return range(first, last)


def ends_early(losses: list[float], config: SwadConfig) -> int | None:
    """After how many evaluations the valley is seen to have ended."""
    for count in range(1, len(losses) + 1):
        found = valley(losses[:count], config)
        if found is not None and found.stop + config.patience <= count:
            return count
    return None


# Few different losses, so that many are equal or lie close to a threshold; and any.
LOSS = st.sampled_from([0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0, 1.3, 2.0, 3.0]) | st.floats(0.01, 10)
# Segments of one to three steps; per segment its steps' weights and the loss at its end.
WEIGHT = st.integers(-8, 8).map(float)
HISTORY = st.lists(st.tuples(st.lists(WEIGHT, min_size=1, max_size=3), LOSS), min_size=1, max_size=24)
DEFAULT = SwadConfig()
CONFIG = st.just(DEFAULT) | st.builds(
    lambda converge, more, tolerance: SwadConfig(converge, converge + more, tolerance),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
)


def feed(swad: Swad, history: list[tuple[list[float], float]], step: int = 0) -> None:
    for weights, loss in history:
        for weight in weights:
            swad.add({"w": torch.tensor([weight, 1.0], dtype=torch.float64)})
        step += len(weights)
        swad.close(step, loss)


@example([([0.0], 0.7), ([1.0], 0.7), ([2.0], 0.7), ([3.0], 0.5)], SwadConfig(3, 3, 0.0))
@given(HISTORY, CONFIG)
def test_averages_the_segments_of_the_valley_each_once(history, config):
    losses = [loss for _, loss in history]
    means = [sum(weights) / len(weights) for weights, _ in history]
    ends = list(accumulate(len(weights) for weights, _ in history))
    swad = Swad(config)
    feed(swad, history)

    average = swad.finish()["w"].tolist()

    found = valley(losses, config)
    if found is None:
        assert average == pytest.approx([means[-1], 1.0])
        assert (swad.start, swad.end) == (None, ends[-1])
    else:
        inside = [means[place] for place in found]
        assert average == pytest.approx([sum(inside) / len(inside), 1.0])
        assert (swad.start, swad.end) == (ends[found[0]], ends[found[-1]])


@given(HISTORY, CONFIG)
def test_is_over_as_soon_as_the_valley_has_ended_and_keeps_few_segments(history, config):
    losses = [loss for _, loss in history]
    swad = Swad(config)
    for count in range(1, len(history) + 1):
        feed(swad, history[count - 1 : count], step=count)
        early = ends_early(losses[:count], config)
        assert swad.over == (early is not None)
        tensors, _ = swad.state()
        assert len(swad.recent) <= config.patience
        assert len(tensors) <= config.patience + 2  # and the running averages of segment and valley


@given(HISTORY, HISTORY, st.lists(WEIGHT, max_size=2), CONFIG)
def test_goes_on_from_a_state_to_the_same_bits(before, after, midway, config):
    whole, first, second = Swad(config), Swad(config), Swad(config)
    after = [(midway + after[0][0], after[0][1]), *after[1:]]  # the state is taken in the middle of a segment
    feed(whole, before + after)
    feed(first, before)
    for weight in midway:
        first.add({"w": torch.tensor([weight, 1.0], dtype=torch.float64)})
    tensors, values = first.state()
    second.load(tensors, json.loads(json.dumps(values)))
    step = sum(len(weights) for weights, _ in before) + len(midway)
    first.finish()  # what happens to the old one is its own affair
    feed(second, [(after[0][0][len(midway) :], after[0][1]), *after[1:]], step)
    assert torch.equal(second.finish()["w"], whole.finish()["w"])
    assert (second.start, second.end, second.over, second.walls) == (whole.start, whole.end, whole.over, whole.walls)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        # Falls to 1.0 at place 4, the lowest of three: threshold (1.0 + 1.1 + 1.2) / 3 · 1.3 = 1.43. Place 3 lies below
        # it, place 2 above. Then 9.0 forever: the window of six that begins at place 6 still holds 1.2.
        ([9.0, 3.0, 1.5, 1.4, 1.0, 1.1, 1.2] + [9.0] * 8, range(3, 7)),
        # Six above the threshold end it, although it comes back.
        ([1.0, 1.0, 1.0] + [9.0] * 6 + [1.0] * 5, range(3)),
        # Five do not.
        ([1.0, 1.0, 1.0] + [9.0] * 5 + [1.0] * 5, range(13)),
        # Up to three earlier ones, here of five below the threshold of 1.3.
        ([1.29, 1.28, 1.27, 1.26, 1.25, 1.0, 1.0, 1.0], range(2, 8)),
        # The tail is judged with what there is: places 3 and 4 see nothing below the threshold.
        ([1.0, 1.0, 1.0, 9.0, 9.0], range(3)),
        # Always falling: never converged.
        ([5.0, 4.0, 3.0, 2.0, 1.0], None),
        ([5.0], None),
    ],
)
def test_valleys_by_hand(losses, expected):
    assert valley(losses, DEFAULT) == expected
    swad = Swad(DEFAULT)
    feed(swad, [([float(2**place)], loss) for place, loss in enumerate(losses)])  # sums of powers name their terms
    places = [len(losses) - 1] if expected is None else expected
    assert swad.finish()["w"][0].item() == pytest.approx(sum(2.0**place for place in places) / len(places))


def test_before_the_first_evaluation_it_gives_what_there_is():
    swad = Swad(DEFAULT)
    for weight in (1.0, 2.0, 6.0):
        swad.add({"w": torch.tensor(weight)})
    assert swad.finish()["w"].item() == 3.0


def test_counters_are_taken_over_not_averaged():
    average = Average()
    for count in (1, 5, 12):
        average.add({"mean": torch.tensor(float(count)), "batches": torch.tensor(count)})
    assert average.weights["mean"].item() == 6.0
    assert average.weights["batches"].item() == 12


def test_an_average_is_of_values_not_of_tensors_that_move():
    average, weight = Average(), torch.tensor([1.0])
    average.add({"w": weight})
    weight.add_(2.0)  # the optimiser's next step
    average.add({"w": weight})
    assert average.weights["w"].item() == 2.0


# ---- in training


def easy(seed: int, wrong: bool = False) -> dict[str, TensorDataset]:
    """Classes that are quickly learnt; where some labels are `wrong`, a model soon is too sure of itself."""
    generator, data = torch.Generator().manual_seed(seed), {}
    for domain in ("a", "b", "c"):
        labels = torch.randint(3, (20,), generator=generator)
        images = torch.randn(20, 6, generator=generator) + 2 * torch.eye(6)[labels]
        data[domain] = TensorDataset(images, (labels + (torch.arange(20) % 4 == 0)) % 3 if wrong else labels)
    return data


SOURCES, HELD_OUT = easy(0), easy(1, wrong=True)
CONFIG_OF_RUN = TrainConfig(
    steps=60, learning_rate=2e-2, batch_size=8, check_every=3, swad=SwadConfig(tolerance=0.03), seed=2
)


def small_model() -> Classifier:
    torch.manual_seed(0)
    return Classifier.of(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 3))


def test_composed_with_coral_it_is_the_plain_average_of_the_weights_in_the_valley():
    model, recorded = small_model(), []

    def record(stats):
        recorded.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    dense = train(model, SOURCES, CONFIG_OF_RUN, objective=Coral(), validation=HELD_OUT, on_step=record)

    config = CONFIG_OF_RUN.swad
    assert config is not None
    losses = [sum(score.loss.values()) / 3 for score in dense.scores]
    steps = [score.step for score in dense.scores]
    assert steps == [1, *range(4, len(recorded) + 1, 3)]
    found = valley(losses, config)
    assert found is not None
    assert 0 < found.start < found.stop < len(losses)  # something is left out at both ends
    assert ends_early(losses, config) == len(losses)  # and training stopped there
    assert len(recorded) == len(dense.losses) == steps[-1] < CONFIG_OF_RUN.steps
    assert dense.selected == steps[found[-1]]

    for name, tensor in model.state_dict().items():
        segments = [
            sum(recorded[step - 1][name].double() for step in range(steps[place - 1] + 1, steps[place] + 1))
            / (steps[place] - steps[place - 1])
            for place in found
        ]
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), sum(segments) / len(segments), rtol=1e-5, atol=1e-6)
    last = recorded[-1]["network.head.weight"]
    assert (model.state_dict()["network.head.weight"] - last).abs().max() > 1e-3


def test_a_run_that_was_broken_off_ends_with_the_same_average(tmp_path):
    whole = train(small_model(), SOURCES, CONFIG_OF_RUN, objective=Coral(), validation=HELD_OUT)

    def stop(stats):
        if stats.step == 17:  # in the middle of a segment
            raise KeyError

    options = {"objective": Coral(), "validation": HELD_OUT, "checkpoint": tmp_path / "run"}
    with pytest.raises(KeyError):
        train(small_model(), SOURCES, CONFIG_OF_RUN, on_step=stop, **options)
    resumed = train(small_model(), SOURCES, CONFIG_OF_RUN, **{**options, "objective": Coral()})

    assert resumed.losses == whole.losses
    assert resumed.selected == whole.selected
    for ours, theirs in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_interrupted_before_the_valley_it_names_the_last_step_that_went_in():
    model, recorded = small_model(), []

    def interrupt(stats):
        recorded.append(model.state_dict()["network.head.weight"].clone())
        if stats.step == 9:
            signal.raise_signal(signal.SIGINT)

    dense = train(model, SOURCES, CONFIG_OF_RUN, validation=HELD_OUT, on_step=interrupt)
    assert dense.interrupted
    assert [score.step for score in dense.scores] == [1, 4, 7]
    # The loss still falls: of the last segment, steps 5 to 7.
    torch.testing.assert_close(model.state_dict()["network.head.weight"], sum(recorded[4:7]) / 3)
    assert dense.selected == 7
