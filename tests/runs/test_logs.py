import json
import os
import shutil

import pytest
from torch.utils.data import TensorDataset

from conftest import make_batches, make_model
from dap.config import PruneConfig, TrainConfig
from dap.errors import DapError
from dap.method.learn import learn_masks
from dap.report import read_records
from dap.runs import TrainSpec, read_metrics, train_dense
from dap.runs.folder import working_in
from dap.runtime.engine import Engine
from dap.runtime.files import write_atomic
from small_studies import small_suite, write_as_before

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


@pytest.mark.parametrize("order", [(0, 1, 3), (1, 2, 3), (0, 2, 1, 3), (0, 1, 1, 2, 3), (0, 1, 2, 3, 3)])
def test_rows_that_were_removed_moved_or_repeated_are_noticed(order, tmp_path):
    lines = log(tmp_path, *rows(1, 2, 3, 4)).splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines[number] for number in order))
    for look in (read_metrics, log):
        with pytest.raises(DapError, match=r"metrics.jsonl is damaged \(line \d: it is not the row that was written"):
            look(tmp_path)


def test_the_log_of_another_run_is_noticed(tmp_path):
    log(tmp_path / "one", *rows(1, 2))
    with working_in(tmp_path / "other", TrainSpec("digits", ("plain",)).resolved(), Engine()):
        pass
    shutil.copy(tmp_path / "one" / "metrics.jsonl", tmp_path / "other")
    with pytest.raises(DapError, match=r"metrics.jsonl is damaged \(line 1: "):
        read_metrics(tmp_path / "other")


def test_a_checkpoint_covers_rows_that_are_in_the_log(tmp_path):
    whole = log(tmp_path, *rows(1, 2, 3))
    (tmp_path / "metrics.jsonl").write_bytes(whole[: whole.index(b"\n") + 1])
    with pytest.raises(DapError, match="training is at step 4, and the row of the step before is missing"):
        log(tmp_path, *rows(4))
    assert log(tmp_path, *rows(2, 3)) == whole


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


def test_a_run_that_an_earlier_version_began_is_resumed(tmp_path):
    config = TrainConfig(steps=6, batch_size=4, freeze_norms=False, learning_rate=1e-3)
    options = {"pixels": 16, "backbone": "small_resnet", "weights": None, "train": config}
    spec, run = TrainSpec(str(small_suite()), ("rotated",), **options), tmp_path / "run"

    def stop(stats):
        if stats.step == 4:
            raise OSError("the lamp went out")

    with pytest.raises(OSError, match="lamp"):
        train_dense(spec, run, on_step=stop)
    first, *_, last = read_metrics(run)
    (run / "metrics.jsonl").write_text(f'{json.dumps(first)}\n{{"stage": "trai\n{json.dumps(last)}\n')
    for file in run.glob("*.json"):
        write_as_before(file)
    train_dense(spec, run)
    train_dense(spec, tmp_path / "whole")
    assert [row["step"] for row in read_metrics(run)] == [1, 4, 5, 6]
    for name in ("result.json", "model.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    unseen = [[record.unseen for record in read_records(place)] for place in (run, tmp_path / "whole")]
    assert unseen[0] == unseen[1]
