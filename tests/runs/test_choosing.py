"""A search as a run: the choice sees sources alone."""

import json

import pytest

from dap.errors import DapError
from dap.report import read_records
from dap.runs import choose_best
from dap.specs import BestSpec, TrainSpec, folder_name
from dap.studies import read_study
from dap.studies.study import keep_file
from dap.studies.work import work_on
from small_studies import small_suite

CANDIDATES = tuple(TrainSpec("digits", ("plain",), pixels=pixels) for pixels in (16, 32))


def write_result(folder, spec: TrainSpec, *, validation: float, **unseen: float) -> None:
    """What the choice may look at, of a training that was not done."""
    (folder / folder_name(spec)).mkdir(parents=True, exist_ok=True)
    score = {"step": 1, "accuracy": {"outline": validation}, "loss": {"outline": 1.0}}
    targets = {domain: {"80 %": accuracy, "20 %": 1 - accuracy, "all": 0.5} for domain, accuracy in unseen.items()}
    (folder / folder_name(spec) / "result.json").write_text(json.dumps({"score": score, "targets": targets}))


def test_by_held_out_images(tmp_path):
    for spec, accuracy in zip(CANDIDATES, (0.5, 0.7), strict=True):
        write_result(tmp_path, spec, validation=accuracy, plain=1 - accuracy)
    result = choose_best(BestSpec(CANDIDATES), tmp_path / "best")
    assert result["chosen"] == folder_name(CANDIDATES[1])
    assert list(result["accuracy"].values()) == [0.5, 0.7]


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_by_sources_that_were_left_out(target, tmp_path):
    """Held-out images speak for the second; what the models do on the target, for whichever, is not asked."""
    search = BestSpec(CANDIDATES, left_out=("outline", "rotated"))
    for number, spec in enumerate(CANDIDATES):
        write_result(tmp_path, spec, validation=0.5 + 0.2 * number, plain=abs(target - number))
        for domain, one in search.without(spec).items():
            accuracy = {"outline": (0.8, 0.3), "rotated": (0.4, 0.6)}[domain][number]
            write_result(tmp_path, one, validation=0.5, plain=abs(target - number), **{domain: accuracy})
    result = choose_best(search, tmp_path / "best")
    assert result["chosen"] == folder_name(CANDIDATES[0])
    assert list(result["accuracy"].values()) == pytest.approx([0.6, 0.45])
    assert choose_best(search, tmp_path / "best") == result


def test_nothing_is_chosen_by_a_target(tmp_path):
    for spec, accuracy in zip(CANDIDATES, (0.5, 0.7), strict=True):
        write_result(tmp_path, spec, validation=accuracy, plain=1 - accuracy)
    with pytest.raises(DapError, match="plain is a target: nothing is chosen by it"):
        choose_best(BestSpec(CANDIDATES, left_out=("plain",)), tmp_path / "best")


def test_a_training_that_is_missing_is_named(tmp_path):
    search = BestSpec(CANDIDATES[:1], left_out=("rotated",))
    write_result(tmp_path, CANDIDATES[0], validation=0.5, plain=0.5)
    (missing,) = search.without(CANDIDATES[0]).values()
    with pytest.raises(DapError, match=f"{folder_name(missing)} is not done"):
        choose_best(search, tmp_path / "best")


def test_from_a_study_to_a_report(tmp_path):
    (tmp_path / "search.yaml").write_text(f"""
train:
  suite: {small_suite()}
  target: plain
  pixels: 16
  backbone: small_resnet
  weights: null
  train: {{steps: 2, batch_size: 4, freeze_norms: false}}
  search: {{trials: 2, leave_out: [outline, plain, rotated, textured]}}
""")
    study = read_study(tmp_path / "search.yaml", tmp_path / "runs")
    assert len(study.runs) == 2 * 4 + 1
    keep_file(study, tmp_path / "search.yaml")
    for run, spec in study.runs.items():
        assert work_on(spec, study.folder, lambda progress: None) == ("done", ""), run
        if isinstance(spec, TrainSpec):  # trials are no results, also before the choice
            assert read_records(study.folder) == []
    (record,) = read_records(study.folder)  # trainings that only helped to choose are no results
    assert record.targets == ("plain",)
    assert record.options["dense.chosen"] == "by left-out domains"
