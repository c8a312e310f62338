import json
from dataclasses import replace

import pytest
import torch

from dap.config import TrainConfig
from dap.data import load_suite
from dap.errors import DapError
from dap.runs import TrainSpec, divide, make_objective, train_dense
from dap.runs.dense import load_dense
from data.small_suites import make_folder


def test_targets_are_set_apart_whole_and_in_domainbeds_parts():
    suite = load_suite("digits")
    sources = divide(suite, ("rotated",), seed=0)
    assert list(sources.train) == list(sources.held_out) == ["outline", "plain", "textured"]
    assert {part: len(data) for part, data in sources.targets["rotated"].items()} == {"80 %": 360, "20 %": 89}
    seen = torch.cat([data.tensors[0] for data in (*sources.train.values(), *sources.held_out.values())])
    unseen = {image.numpy().tobytes() for image in suite.domains["rotated"].tensors[0]}
    assert not unseen & {image.numpy().tobytes() for image in seen}


def test_a_domain_of_too_few_images_is_named(tmp_path):
    make_folder(tmp_path, {"day": {"cat": 3, "dog": 3}, "dusk": {"cat": 2, "dog": 2}, "night": {"cat": 3, "dog": 3}})
    suite = load_suite(tmp_path, pixels=8, cache=False)
    for targets in (("dusk",), ("night",)):
        with pytest.raises(DapError, match="of 4 images of dusk a fifth cannot be held out: add images"):
            divide(suite, targets, seed=0)


def test_an_objective_takes_its_suites_defaults_and_the_users_options():
    assert make_objective("miro", {}, "PACS").options()["weight"] == 0.01
    assert make_objective("miro", {}, "OfficeHome").options()["weight"] == 0.1
    assert make_objective("miro", {"weight": 1.0}, "PACS").options()["weight"] == 1.0
    assert make_objective("mmd", {"bandwidths": [1.0]}, "PACS").options()["bandwidths"] == [1.0]
    with pytest.raises(DapError, match="does not take wait; its options: weight, anneal"):
        make_objective("irm", {"wait": 3}, "PACS")
    with pytest.raises(DapError, match="option weight of objective 'irm' is 'heavy'; its default is 100.0"):
        make_objective("irm", {"weight": "heavy"}, "PACS")


def test_a_vision_transformer_takes_the_size_of_the_images(tmp_path):
    config = TrainConfig(steps=1, batch_size=2)
    spec = TrainSpec("digits", ("rotated",), backbone="vit_tiny_patch16_224", weights=None, train=config)
    assert train_dense(spec, tmp_path)["steps"] == 1


def test_groups_that_a_target_shares_with_a_source_are_told(tmp_path):
    make_folder(tmp_path, {domain: {"cat": 10, "dog": 10} for domain in ("day", "night")})
    rows = [
        f"{domain}/{name}/{number}.png,{name},{domain},{number if domain == 'day' else number + 9}"
        for domain in ("day", "night")
        for name in ("cat", "dog")
        for number in range(10)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,domain,group", *rows]))
    suite = load_suite(tmp_path / "table.csv", pixels=8, cache=False)
    with pytest.warns(UserWarning, match="1 groups of night are also in a source: it is not unseen"):
        divide(suite, ("night",), seed=0)


def test_an_interrupted_run_has_no_result_yet_and_goes_on(tmp_path):
    config = TrainConfig(steps=6, batch_size=4, freeze_norms=False, learning_rate=1e-3)
    spec = TrainSpec("digits", ("rotated",), backbone="small_resnet", weights=None, train=config)

    def stop(stats):
        if stats.step == 3:
            raise OSError("the lamp went out")

    with pytest.raises(OSError, match="lamp"):
        train_dense(spec, tmp_path / "run", on_step=stop)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock", "environment.json", "failure.json", "images.json", "metrics.jsonl", "spec.json",
        "state.safetensors",
    ]  # fmt: skip
    with pytest.raises(DapError, match="holds a run with pixels=224: choose another folder, or remove it"):
        train_dense(replace(spec, pixels=32), tmp_path / "run")
    before = json.loads((tmp_path / "run" / "environment.json").read_text())
    resumed = train_dense(spec, tmp_path / "run")
    after = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert after["starts"] == before["starts"]
    assert after["seconds"] > before["seconds"] > 0
    assert resumed == train_dense(spec, tmp_path / "other")
    images = {"80 %": 360, "20 %": 89}
    parts = resumed["targets"]["rotated"]
    assert parts["all"] == pytest.approx(sum(parts[part] * count for part, count in images.items()) / 449)
    assert list(resumed["watched, not selected by"]) == ["1", "6"]
    assert resumed["score"] in resumed["validation"]
    first, second = (load_dense(tmp_path / name)[0].state_dict() for name in ("run", "other"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
