import subprocess
import sys

import pytest

from dap.config import PAPER, PacedSchedule, PruneConfig
from dap.errors import DapError


def test_a_field_left_unset_takes_its_presets_value():
    paced, paper = PruneConfig().resolved(), PruneConfig(coefficient="paper").resolved()
    assert (paced.steps, paced.learning_rate, paced.temperature, paced.average) == (500, 0.05, (0.7, 0.2), 0.95)
    assert (paper.steps, paper.learning_rate, paper.temperature, paper.average) == (100_000, 0.002, (2.0, 0.3), 0)
    assert paper.target_sparsity == 0.999


def test_whole_channels_have_values_of_their_own():
    config = PruneConfig(steps=2000).resolved(channels=True)
    assert (config.learning_rate, config.temperature, config.target_sparsity) == (0.1, (0.3, 0.1), 0.75)
    assert PruneConfig(learning_rate=0.3).resolved(channels=True).learning_rate == 0.3
    assert PruneConfig(coefficient="paper").resolved(channels=True) == PruneConfig(coefficient="paper").resolved()


def test_a_field_that_is_set_stays():
    config = PruneConfig(learning_rate=0.01, average=0.0, temperature=(1.0, 0.5)).resolved()
    assert (config.learning_rate, config.average, config.temperature) == (0.01, 0.0, (1.0, 0.5))


@pytest.mark.parametrize("steps", [20, 100, 500, 5_000, 100_000])
def test_paced_scales_with_the_budget(steps):
    config = PruneConfig(steps=steps).resolved()
    assert config.learning_rate * steps >= 3  # logits start at 2.94 and must get below 0
    assert config.f_update <= max(1, steps / 20)
    assert 0 <= config.average < 1


def test_paper_configurations():
    assert set(PAPER) == {"PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"}
    config = PruneConfig.for_suite("DomainNet", steps=10).resolved()
    assert (config.alpha, config.learning_rate, config.f_update, config.batch_size, config.steps) == (
        0.5, 0.0035, 1_000, 16, 10,
    )  # fmt: skip
    with pytest.raises(DapError, match=r"MNIST.*PACS"):
        PruneConfig.for_suite("MNIST")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_sparsity": 0.04}, "target_sparsity is 0.04.*p_init"),
        ({"target_sparsity": 1.0}, "target_sparsity is 1.0"),
        ({"coefficient": "fast"}, "coefficient is 'fast'.*paper"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"steps": -3}, "steps is -3"),
        ({"alpha": -1}, "alpha is -1"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"beta": 1.0}, "beta is 1.0"),
        ({"average": 1.0}, "average is 1.0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"temperature": (1.0, 0.0)}, "temperature is"),
        ({"f_update": 0}, "f_update is 0"),
        ({"stop_at": 1.5}, "stop_at is 1.5"),
        ({"stop_at": 0.96}, "stop_at is 0.96, beyond target_sparsity=0.9"),
        ({"p_init": 0.0}, "p_init is 0.0"),
        ({"f_start": -1}, "f_start is -1"),
        ({"paced": PacedSchedule(share=0)}, "paced.share is 0"),
        ({"paced": PacedSchedule(start=0)}, "paced.start is 0"),
        ({"include": "layer.*"}, "include is a list of patterns"),
    ],
)
def test_wrong_values_are_named(options, message):
    with pytest.raises(DapError, match=message):
        PruneConfig(**options).resolved()


def test_unknown_options_are_named():
    with pytest.raises(DapError, match=r"unknown option 'sparsity'.*target_sparsity"):
        PruneConfig.from_dict({"sparsity": 0.9})
    with pytest.raises(TypeError, match="sparsity"):
        PruneConfig(sparsity=0.9)  # pyright: ignore


def test_from_dict_takes_what_a_file_holds():
    config = PruneConfig.from_dict({"temperature": [1.0, 0.5], "paced": {"share": 0.5}, "include": ["head.*"]})
    assert config == PruneConfig(temperature=(1.0, 0.5), paced=PacedSchedule(share=0.5), include=("head.*",))


def test_lists_become_tuples_so_that_a_saved_state_fits():
    config = PruneConfig(temperature=[1.0, 0.5], include=["a", "b"]).resolved()  # pyright: ignore
    assert (config.temperature, config.include) == ((1.0, 0.5), ("a", "b"))


def test_reading_options_does_not_import_torch():
    code = "import importlib.util, sys\nimport dap.config\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_path_is_curved_for_weights_and_straight_for_channels_unless_it_is_set():
    weights, channels = PruneConfig().resolved().paced, PruneConfig().resolved(channels=True).paced
    assert (weights.start, weights.curve) == (1.5, 2.0)
    assert (channels.start, channels.curve) == (1.0, 1.0)
    assert PruneConfig(paced=PacedSchedule(curve=3.0)).resolved().paced == PacedSchedule(start=1.5, curve=3.0)
