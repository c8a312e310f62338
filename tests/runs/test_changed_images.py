"""Images that are not those a model was trained on: its labels and splits would be wrong."""

import shutil
import signal

import pytest

from dap.config import PruneConfig, TrainConfig
from dap.errors import DapError
from dap.runs import EvaluateSpec, PruneSpec, TrainSpec, evaluate_run, prune_dense, train_dense
from data.small_suites import encoded, make_folder

OPTIONS = {"pixels": 16, "backbone": "small_resnet", "weights": None}


@pytest.fixture
def images(tmp_path):
    return make_folder(tmp_path / "pets", {domain: {"ant": 10, "bee": 10} for domain in ("day", "dusk", "night")})


@pytest.fixture
def dense(images, tmp_path):
    config = TrainConfig(steps=2, batch_size=4, freeze_norms=False)
    train_dense(TrainSpec(str(images), ("night",), train=config, **OPTIONS), tmp_path / "dense")
    return tmp_path / "dense"


def rename_a_class(images):
    for domain in images.iterdir():
        (domain / "bee").rename(domain / "Bee")


def add_a_domain(images):
    shutil.copytree(images / "day", images / "a-new")


def add_an_image(images):
    (images / "day" / "ant" / "0a.png").write_bytes(encoded(99))


def add_a_class(images):
    shutil.copytree(images / "day" / "bee", images / "day" / "cow")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename_a_class, "pets has the classes Bee, ant, and the model was trained for ant, bee: restore the images"),
        (add_a_class, "pets has the classes ant, bee, cow, and the model was trained for ant, bee"),
        (add_a_domain, "has the domains a-new, day, dusk, night, and when the model was trained day, dusk, night"),
        (add_an_image, "images of day were added, removed or renamed since training, so what is held out now may have"),
    ],
)
def test_a_model_does_not_meet_other_images(change, message, images, dense, tmp_path):
    change(images)
    for run in (dense, dense / "model.safetensors"):
        with pytest.raises(DapError, match=message):
            evaluate_run(EvaluateSpec(str(run)), tmp_path / "evaluation")
    with pytest.raises(DapError, match=message):
        prune_dense(PruneSpec(str(dense), "magnitude", (0.5,), prune=PruneConfig(batch_size=4)), tmp_path / "run")


def test_an_unseen_domain_may_have_others(images, dense, tmp_path):
    (images / "night" / "ant" / "0a.png").write_bytes(encoded(99))
    assert evaluate_run(EvaluateSpec(str(dense)), tmp_path / "evaluation")["models"]


def test_training_does_not_go_on_with_others(images, tmp_path):
    spec = TrainSpec(str(images), ("night",), train=TrainConfig(steps=4, batch_size=4, freeze_norms=False), **OPTIONS)
    stopped = train_dense(spec, tmp_path / "run", on_step=lambda stats: signal.raise_signal(signal.SIGINT))
    assert stopped["interrupted"]
    add_an_image(images)
    with pytest.raises(DapError, match="images of day were added, removed or renamed since .*run began: restore them"):
        train_dense(spec, tmp_path / "run")
    (images / "day" / "ant" / "0a.png").unlink()
    assert train_dense(spec, tmp_path / "run")["steps"] == 4
