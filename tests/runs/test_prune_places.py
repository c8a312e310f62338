"""A pruning and what it stands on: the dense training, the images and the folder, when they move or change."""

import shutil
from dataclasses import replace

import pytest
import safetensors.torch

from dap.config import TrainConfig
from dap.errors import DapError
from dap.models import small_resnet
from dap.report import read_records
from dap.runs import (
    EvaluateSpec,
    PruneSpec,
    TrainSpec,
    load_pruned,
    prune_dense,
    read_spec,
    train_dense,
)
from dap.runs.dense import load_dense, save_dense
from dap.runs.rehearsal import rehearse
from dap.specs import identity
from small_prunings import dense_training, spec_of
from small_studies import write_as_before


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return dense_training(tmp_path_factory.mktemp("runs") / "dense")


def test_a_folder_of_another_run_and_a_dense_model_that_changed(dense, tmp_path):
    prune_dense(spec_of(dense, "magnitude"), tmp_path / "run")
    with pytest.raises(DapError, match="holds a run with method='magnitude'"):
        prune_dense(spec_of(dense, "random"), tmp_path / "run")
    with pytest.raises(DapError, match=r"no masks for 0.7 in .*; it has 0.3, 0.5"):
        load_pruned(tmp_path / "run", 0.7)

    moved = shutil.copytree(dense, tmp_path / "moved")
    assert load_pruned(tmp_path / "run", 0.5, dense=moved)[1].sparsity == pytest.approx(0.5, abs=1e-5)
    other = replace(read_spec(dense), train=TrainConfig(steps=1, batch_size=4, freeze_norms=False))
    train_dense(other, tmp_path / "other")
    with pytest.raises(DapError, match=r"the dense model is not the one that .*run prunes"):
        load_pruned(tmp_path / "run", 0.5, dense=tmp_path / "other")
    with pytest.raises(DapError, match="the dense training nowhere is not there: train it, or say where it is"):
        load_pruned(tmp_path / "run", 0.5, dense="nowhere")


@pytest.mark.parametrize("method", ["magnitude", "movement"])
def test_a_dense_model_that_is_replaced_half_way(method, dense, tmp_path):
    place = shutil.copytree(dense, tmp_path / "dense")
    spec = replace(spec_of(place, method), finetuned=True)

    def stop(news):
        if news.stage in ("movement", "fine-tuning at 0.5"):
            raise OSError("the lamp went out")

    with pytest.raises(OSError, match="lamp"):
        prune_dense(spec, tmp_path / "run", on_step=stop)
    model, objective, card = load_dense(place)
    model.get_parameter("network.head.weight").data.add_(1)
    save_dense(place, model, objective, ("outline", "plain", "textured"), card)
    with pytest.raises(DapError, match=r"model.safetensors is damaged .*result.json was written with another one"):
        prune_dense(spec, tmp_path / "run")
    write_as_before(place / "result.json")
    with pytest.raises(DapError, match="is not the one that"):
        prune_dense(spec, tmp_path / "run")


def test_images_that_were_moved(dense, tmp_path):
    spec = read_spec(dense)
    assert isinstance(spec, TrainSpec)
    images = shutil.copytree(spec.suite, tmp_path / "here" / "pets")
    at_home = replace(spec, suite="pets", root=str(images.parent))
    train_dense(at_home, tmp_path / "dense")
    there = images.parent.rename(tmp_path / "there")
    with pytest.raises(DapError, match="pets"):
        prune_dense(spec_of(tmp_path / "dense", "random"), tmp_path / "run")
    moved = spec_of(tmp_path / "dense", "random", root=str(there))
    assert rehearse(moved).memory
    result = prune_dense(moved, tmp_path / "run")
    assert identity(moved) == identity(replace(moved, root=None)) == identity(read_spec(tmp_path / "run"))
    assert prune_dense(moved, tmp_path / "run") == result
    load_pruned(tmp_path / "run", 0.5)  # whose images are where its specification has them


def test_whose_dense_training_it_is_does_not_depend_on_where_one_is(dense, tmp_path, monkeypatch):
    for project in ("a", "b"):
        shutil.copytree(dense, tmp_path / project / "runs" / "dense")
    _, objective, card = load_dense(dense)
    other = small_resnet(2)
    save_dense(tmp_path / "b" / "runs" / "dense", other, objective, tuple(card.notes["sources"]), card)
    write_as_before(tmp_path / "b" / "runs" / "dense" / "result.json")
    monkeypatch.chdir(tmp_path / "a")
    spec = spec_of("runs/dense", "random")
    prune_dense(spec, "runs/random")
    absolute = replace(spec, dense=str(tmp_path / "a" / "runs" / "dense"))
    assert prune_dense(absolute, tmp_path / "a" / "runs" / "random")["sparse"]  # another way to say it, nothing else
    monkeypatch.chdir(tmp_path / "b")
    load_pruned(tmp_path / "a" / "runs" / "random", 0.5)
    prune_dense(spec, tmp_path / "a" / "runs" / "of-b")  # what is said here is meant from here
    kept = read_spec(tmp_path / "a" / "runs" / "of-b")
    assert isinstance(kept, PruneSpec)
    assert kept.dense == str(tmp_path / "b" / "runs" / "dense")
    (tmp_path / "a" / "runs" / "dense").rename(tmp_path / "a" / "moved")
    rows = [record for record in read_records(tmp_path / "a" / "runs") if record.run == "random" and record.wished]
    assert [record.targets for record in rows] == [("rotated",), ("rotated",)]


def test_a_rehearsal_of_a_pruning_needs_no_weights_that_training_began_with(dense, tmp_path):
    spec = read_spec(dense)
    assert isinstance(spec, TrainSpec)
    safetensors.torch.save_file(small_resnet(2).network.state_dict(), tmp_path / "w.safetensors")
    train_dense(replace(spec, weights=str(tmp_path / "w.safetensors")), tmp_path / "dense")
    (tmp_path / "w.safetensors").unlink()
    assert rehearse(spec_of(tmp_path / "dense", "random")).memory


def test_an_evaluation_can_be_rehearsed_where_the_dense_training_was_moved(dense, tmp_path):
    shutil.copytree(dense, tmp_path / "dense")
    prune_dense(spec_of(tmp_path / "dense", "random"), tmp_path / "run")
    (tmp_path / "dense").rename(tmp_path / "elsewhere")
    assert rehearse(EvaluateSpec(str(tmp_path / "run"))).seconds["evaluation"] > 0


def test_what_others_keep_in_the_folder_stays(dense, tmp_path):
    ours = tmp_path / "0.5" / ".masks.safetensors.a1b2c3d4"
    theirs = [
        tmp_path / ".pre-commit-config.yaml",
        tmp_path / "sub" / ".gitlab-ci.yml",
        tmp_path / "sub" / "result.json",
    ]
    for path in (ours, *theirs):
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")

    def stop(news):
        raise OSError("the lamp went out")

    with pytest.raises(OSError, match="lamp"):
        prune_dense(spec_of(dense, "taylor"), tmp_path, on_step=stop)
    assert ours.exists()  # the folder was not this run's when it was written
    prune_dense(spec_of(dense, "taylor"), tmp_path)
    assert not ours.exists()
    assert all(path.exists() for path in theirs)


def test_what_is_no_dense_training(dense, tmp_path):
    with pytest.raises(DapError, match=r"no model.safetensors in .*: give the folder of a finished dense training"):
        prune_dense(spec_of(tmp_path, "random"), tmp_path / "run")
    for name in ("model.safetensors", "objective.safetensors"):
        shutil.copy(dense / name, tmp_path)
    with pytest.raises(DapError, match=r"no spec.json in .*: give the folder of a run"):
        prune_dense(spec_of(tmp_path, "random"), tmp_path / "run")
    (tmp_path / "spec.json").write_text('{"suite": "x"}')
    with pytest.raises(DapError, match="has format none, this version of dap has 1: make the run again"):
        prune_dense(spec_of(tmp_path, "random"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
