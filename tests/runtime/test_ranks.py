"""Two processes do what one does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dap.errors import DapError
from dap.runtime.checkpoints import load_state
from dap.runtime.ranks import Ranks
from measures import MEASURES
from ranked import RUNS


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What one process, and each of two, ended with: tensors and values."""
    folder = tmp_path_factory.mktemp("ranks")
    for devices in (1, 2):
        command = [sys.executable, str(Path(__file__).parents[1] / "ranked.py"), str(devices), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    return {name: load_state(folder / name) for name in ("1-rank-0", "2-rank-0", "2-rank-1")}


def test_ranks_end_with_the_same_bits(ended):
    (first, one), (second, two) = ended["2-rank-0"], ended["2-rank-1"]
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert one == two


@pytest.mark.parametrize("name", [name for name, objective in RUNS.items() if name == objective])
def test_two_processes_follow_one(ended, name):
    alone, together = ended["1-rank-0"], ended["2-rank-0"]
    assert together[1][name]["losses"] == pytest.approx(alone[1][name]["losses"], rel=1e-4)
    assert together[1][name]["validation"][0] == alone[1][name]["validation"][0]
    for step in (0, 4):
        found, expected = together[1][name]["history"][step], alone[1][name]["history"][step]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    ours, theirs = together[0][f"{name}.logits"], alone[0][f"{name}.logits"]
    assert (ours > 0).eq(theirs > 0).float().mean() > 0.97
    assert together[0][f"{name}.sensitivity"].eq(alone[0][f"{name}.sensitivity"]).float().mean() > 0.97


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_of_sensitivity_sees_the_whole_batch(ended, name):
    alone, together = ended["1-rank-0"][0], ended["2-rank-0"][0]
    keys = [key for key in alone if key.startswith(f"measure {name}.")]
    assert sum(".memory." in key for key in keys) * 4 == MEASURES[name].cost(3).kept
    low, high = MEASURES[name].range
    for key in keys:
        assert key in together
        if ".sensitivity" in key:
            away = (together[key].float() - alone[key].float()).abs() / (high - low)
            assert (away < 0.01).float().mean() > 0.97


def test_a_way_that_one_rank_does_not_take_is_learnt_from_the_other(ended):
    (alone, one), (together, two) = ended["1-rank-0"], ended["2-rank-0"]
    assert two["routed"] == one["routed"]
    assert "ways.3.weight" in one["routed"]["unused"]
    torch.testing.assert_close(together["routed.logits"], alone["routed.logits"], rtol=1e-3, atol=1e-3)


def test_criteria_see_the_whole_batch(ended):
    alone, together = ended["1-rank-0"][0], ended["2-rank-0"][0]
    names = [name for name in alone if " scores." in name]
    assert len(names) == 4 * 3
    for name in names:
        torch.testing.assert_close(together[name], alone[name], rtol=1e-3, atol=1e-6)


def test_models_that_differ_from_rank_to_rank_are_refused(ended):
    assert "own models" not in ended["1-rank-0"][1]
    for rank in ("2-rank-0", "2-rank-1"):
        assert ended[rank][1]["own models"].startswith("the processes have different models: build them from the same")


def test_shares_are_the_batch_in_order():
    parts = [list(range(6))[Ranks(rank, 3).share(6)] for rank in range(3)]
    assert parts == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(DapError, match="a batch of 7 does not divide among 2 processes: choose a multiple"):
        Ranks(0, 2).share(7)


def test_alone_nothing_is_exchanged():
    tensor = torch.ones(3)
    Ranks().sum_([tensor])
    assert Ranks().gather(tensor) is tensor
    assert Ranks().totals(1.0, 2.0) == [1.0, 2.0]
    assert not Ranks().agree(False)
