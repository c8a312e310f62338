import pytest
import torch

from dap.config import TrainConfig
from dap.data import load_suite
from dap.dense import load_dense
from dap.errors import DapError
from dap.runs import TrainSpec, divide, make_objective, train_dense


def test_targets_are_set_apart_whole_and_in_domainbeds_parts():
    suite = load_suite("digits")
    sources = divide(suite, ("rotated",), seed=0)
    assert list(sources.train) == list(sources.held_out) == ["outline", "plain", "textured"]
    assert {part: len(data) for part, data in sources.targets["rotated"].items()} == {
        "80 %": 360,
        "20 %": 89,
        "all": 449,
    }
    seen = torch.cat([data.tensors[0] for data in (*sources.train.values(), *sources.held_out.values())])
    unseen = {image.numpy().tobytes() for image in sources.targets["rotated"]["all"].tensors[0]}
    assert not unseen & {image.numpy().tobytes() for image in seen}


def test_an_objective_takes_its_suites_defaults_and_the_users_options():
    assert make_objective("miro", {}, "PACS").options()["weight"] == 0.01
    assert make_objective("miro", {}, "OfficeHome").options()["weight"] == 0.1
    assert make_objective("miro", {"weight": 1.0}, "PACS").options()["weight"] == 1.0
    with pytest.raises(DapError, match="does not take wait; its options: weight, anneal"):
        make_objective("irm", {"wait": 3}, "PACS")


def test_an_interrupted_run_has_no_result_yet_and_goes_on(tmp_path):
    config = TrainConfig(steps=6, batch_size=4, freeze_norms=False, learning_rate=1e-3)
    spec = TrainSpec("digits", ("rotated",), backbone="small_resnet", weights=None, train=config)

    def stop(stats):
        if stats.step == 3:
            raise OSError("the lamp went out")

    with pytest.raises(OSError, match="lamp"):
        train_dense(spec, tmp_path / "run", on_step=stop)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["state.safetensors"]
    resumed = train_dense(spec, tmp_path / "run")
    assert resumed == train_dense(spec, tmp_path / "other")
    first, second = (load_dense(tmp_path / name)[0].state_dict() for name in ("run", "other"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
