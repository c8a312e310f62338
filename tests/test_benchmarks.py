import math

from step import compare


def test_step_benchmark_on_a_small_model():
    result = compare("resnet18", pixels=32, images=2, repeats=2)
    assert set(result) == {
        "step_over_dense", "step_over_split_dense", "sensitivity_over_ordinary", "coral_sensitivity_over_ordinary",
        "naive_over_step", "state_bytes_per_weight",
    }  # fmt: skip
    assert all(math.isfinite(value) and value > 0 for value in result.values())
    assert 17.9 < result["state_bytes_per_weight"] <= 18.5
