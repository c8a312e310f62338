import json

import pytest

from dap.errors import DapError
from dap.runs.curves import tensorboard


def drawn(folder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's own
def test_logs_of_a_study_are_drawn_run_by_run(tmp_path):
    for run in ("train-1", "prune-2"):
        (tmp_path / run).mkdir()
    log = tmp_path / "train-1" / "metrics.jsonl"
    log.write_text(json.dumps({"stage": "training", "step": 1, "steps": 3, "loss": 0.5}) + "\n")
    with tensorboard(tmp_path):
        with open(log, "a") as file:
            file.write('{"stage": "trai\n')  # a process was killed here
            file.write(
                json.dumps({"stage": "training", "step": 2, "steps": 3, "loss": 0.25}) + "\n" + '{"stage": "half'
            )
        row = {"stage": "mask learning", "step": 1, "validation": {"art": 1.0}, "done": True, "text": "x"}
        (tmp_path / "prune-2" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert drawn(tmp_path / "tensorboard" / "train-1") == {"training/loss": [(1, 0.5), (2, 0.25)]}
    assert drawn(tmp_path / "tensorboard" / "prune-2") == {"mask learning/validation/art": [(1, 1.0)]}
    with tensorboard(tmp_path):  # from the beginning, not twice
        pass
    assert drawn(tmp_path / "tensorboard" / "train-1") == {"training/loss": [(1, 0.5), (2, 0.25)]}


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "mine.txt").write_text("precious")
    with pytest.raises(DapError), tensorboard(tmp_path):
        raise DapError("the folder is another run's")
    assert (tmp_path / "tensorboard" / "mine.txt").read_text() == "precious"


def test_nothing_is_drawn_unasked(tmp_path):
    with tensorboard(tmp_path, wanted=False):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n')
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(DapError, match=r"curves need TensorBoard: pip install 'dap\[watch\]'"), tensorboard(tmp_path):
        pass
