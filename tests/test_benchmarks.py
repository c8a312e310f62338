import math

import pytest

import baselines
import corruptions
import files
import scoring
import step


@pytest.mark.slow
def test_step_benchmark_on_a_small_model():
    result = step.compare("resnet18", pixels=32, images=2, repeats=2)
    assert set(result) == {
        "step_over_dense", "step_over_split_dense", "sensitivity_over_ordinary", "coral_sensitivity_over_ordinary",
        "naive_over_step", "state_bytes_per_weight",
    }  # fmt: skip
    assert all(math.isfinite(value) and value > 0 for value in result.values())
    assert 17.9 < result["state_bytes_per_weight"] <= 18.5


@pytest.mark.slow
def test_scoring_benchmark_on_a_small_model():
    result = scoring.compare("resnet18", repeats=1)
    assert set(result) == {"over_torch_prune", "peak_copies", "torch_peak_copies", "same_masks"}
    assert result["same_masks"] == 1
    assert result["over_torch_prune"] < 0.5
    assert result["peak_copies"] < 3


@pytest.mark.slow
def test_the_comparison_of_methods_on_a_small_scale(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "STEPS", {"dense": 2, "masks": 2, "tuning": 1})
    monkeypatch.setattr(baselines, "DOMAINS", ("plain",))
    monkeypatch.setattr(baselines, "SPARSITIES", (0.5,))
    results = dict.fromkeys([("plain", 0), ("plain", 1)], baselines.run(tmp_path, "plain", 0))
    table = baselines.table(results, [0, 1], "unseen")
    assert [line.split("|")[1].strip() for line in table.splitlines()[4:]] == [
        baselines.TITLES[name] for name in baselines.ORDER
    ]
    assert "± 0.0" in table
    assert "| DAP |" in baselines.by_target(results, [0, 1], 0.5)


@pytest.mark.slow
def test_corruptions_benchmark_on_a_small_scale():
    result = corruptions.compare("resnet18", images=4, pixels=32, severities=(1,))
    assert set(result) == {"second_model_over_forward", "first_over_second"}
    assert all(value > 0 for value in result.values())


def test_a_sparse_file_of_resnet_50_is_as_small_as_promised():
    result = files.compare()
    assert result["fp32"] <= 0.24
    assert result["fp16"] < 0.28
    assert set(result) == {"fp32", "fp16", "bf16", "load_over_dense"}
