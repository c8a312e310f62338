"""Commands are parsed as the command line parses them, and must ask for the run that they came from."""

import shlex
from dataclasses import replace

import pytest

import dap.runs
from dap.cli import main
from dap.config import FinetuneConfig, PacedSchedule, PruneConfig, SwadConfig, TrainConfig
from dap.report.commands import commands_of
from dap.specs import BestSpec, ModelSpec, PruneSpec, TrainSpec, folder_name

DENSE = TrainSpec(
    "my images", ("night", "day"), weights=None, threads=1, train=TrainConfig(steps=5, freeze_norms=False)
)


class Captured(Exception):
    pass


@pytest.fixture
def asked(monkeypatch):
    """What a command asks for, in place of doing it."""
    found = []

    def capture(spec, out, **options):
        found.append((spec, str(out)))
        raise Captured

    monkeypatch.setattr(dap.runs, "train_dense", capture)
    monkeypatch.setattr(dap.runs, "prune_dense", capture)

    def run(command):
        with pytest.raises(Captured):
            main(shlex.split(command)[1:])
        return found.pop()

    return run


@pytest.mark.parametrize(
    "spec",
    [
        DENSE,
        replace(DENSE, objective="miro", options={"weight": 0.25}, train=TrainConfig(swad=SwadConfig(4, 4), seed=3)),
        PruneSpec("runs/a dense", "taylor", (0.5, 0.8), allocation="erk", finetuned=True, finetune=FinetuneConfig(7)),
        PruneSpec("x", prune=PruneConfig(temperature=(1.0, 0.5), include=("a*", "b"), paced=PacedSchedule(curve=3.0))),
        PruneSpec("x", prune=PruneConfig("paper", steps=500, alpha=5.0)),
        PruneSpec("x", prune=PruneConfig(steps=2000, learning_rate=0.05, f_update=2, average=0.95)),
        replace(DENSE, train=TrainConfig(swad=SwadConfig(), check_every=300)),
        replace(DENSE, suite="DomainNet", objective="miro", train=TrainConfig(steps=5001)),
        PruneSpec(ModelSpec("mine.nets:build", "images", ("night",), pixels=32, weights="w.pth"), watch_every=5),
    ],
)  # fmt: skip
def test_a_command_asks_for_the_run_it_came_from(spec, asked):
    (command,) = commands_of(spec, "runs/the one")
    again, place = asked(command)
    assert (again.resolved(), place) == (spec.resolved(), "runs/the one")
    assert commands_of(again, place) == [command]


def test_a_command_has_what_is_not_usual():
    (command,) = commands_of(PruneSpec("x", prune=PruneConfig(steps=2000, paced=PacedSchedule(curve=3.0))), "y")
    assert command == "dap prune x --prune.steps 2000 --prune.paced.curve 3.0 --out y"
    assert commands_of(replace(DENSE, targets=()), "y") == []


def test_what_a_run_needs_comes_first(asked):
    spec = PruneSpec(DENSE, "magnitude", (0.5,))
    first, second = commands_of(spec, "runs/sparse")
    place = f"runs/{folder_name(DENSE)}-again"
    assert asked(first) == (DENSE, place)
    assert asked(second) == (replace(spec, dense=place), "runs/sparse")
    assert commands_of(PruneSpec(BestSpec((DENSE, DENSE))), "runs/x") == []
    own = ModelSpec("mine.nets:build", "images", train=TrainConfig(seed=4))
    assert commands_of(PruneSpec(own), "runs/x") == []  # there is no option for its seed
