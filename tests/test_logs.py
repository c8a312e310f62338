import os

import pytest
from torch.utils.data import TensorDataset

from conftest import make_batches, make_model
from dap.config import PruneConfig
from dap.engine import Engine
from dap.files import write_atomic
from dap.learning import learn_masks
from dap.runs import TrainSpec, read_metrics
from dap.runs.folder import working_in

SPEC = TrainSpec("digits", ("rotated",))


def rows(*steps: int, loss: float = 0.5) -> list[dict]:
    return [{"stage": "training", "step": step, "loss": loss} for step in steps]


def log(folder, *rows: dict) -> bytes:
    with working_in(folder, SPEC.resolved(), Engine()) as metrics:
        for row in rows:
            metrics.add(**row)
    return (folder / "metrics.jsonl").read_bytes()


def test_rows_that_are_repeated_after_a_resume_are_there_once(tmp_path):
    whole = log(tmp_path / "whole", *rows(1, 2, 3, 4))
    log(tmp_path / "run", *rows(1, 2, 3))
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"stage": "trai')  # killed in the middle of a line
    assert log(tmp_path / "run", *rows(2, 3, 4)) == whole


def test_other_numbers_count_in_the_place_of_the_first(tmp_path):
    log(tmp_path, *rows(1, 2, 3))
    log(tmp_path, *rows(2, loss=0.25), *rows(3))
    log(tmp_path, *rows(2))
    assert read_metrics(tmp_path) == rows(1, 2, 3)


def test_a_log_is_on_disk_before_what_is_written_after_it(tmp_path, monkeypatch):
    done, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), sync(handle)))
    with working_in(tmp_path, SPEC.resolved(), Engine()) as metrics:
        monkeypatch.setattr(os, "replace", lambda old, new: (done.append(f"to {new}"), rename(old, new)))
        done.clear()
        metrics.add(**rows(1)[0])
        assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1  # a kill loses nothing
        write_atomic(tmp_path / "state", b"1")
        assert done[-2:] == [str(tmp_path / "metrics.jsonl"), f"to {tmp_path / 'state'}"]


def test_a_step_is_told_before_the_checkpoint_that_covers_it(tmp_path):
    sources = {name: TensorDataset(*batch) for name, batch in make_batches(size=8).items()}
    seen = []

    def tell(stats):
        seen.append((stats.step, (tmp_path / "state").exists()))

    config = PruneConfig(steps=2, target_sparsity=0.5, batch_size=4)
    learn_masks(
        make_model("convolutional"), sources, config, checkpoint=tmp_path / "state", checkpoint_every=1, on_step=tell
    )
    assert seen == [(1, False), (2, True)]


def test_a_new_attempt_forgets_the_failure_of_the_last(tmp_path):
    with pytest.raises(OSError, match="lamp"), working_in(tmp_path, SPEC.resolved(), Engine()):
        raise OSError("the lamp went out")
    assert (tmp_path / "failure.json").exists()
    with working_in(tmp_path, SPEC.resolved(), Engine()):
        assert not (tmp_path / "failure.json").exists()
