import math
from dataclasses import replace

import pytest
import torch

import baselines
import claims
import corruptions
import files
import latency
import scoring
import step
from dap.bits import pack_bits
from dap.report import Record


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


@pytest.mark.slow
def test_latency_benchmark_on_a_small_model():
    result = latency.compare("resnet18", pixels=32, steps=2, repeats=8)
    assert set(result) == {
        "flops_ratio", "parameter_ratio", "max_abs_difference", "speedup_batch_1", "speedup_batch_8",
        "torch_speedup_batch_1",
    }  # fmt: skip
    assert result["flops_ratio"] <= 0.5
    assert result["max_abs_difference"] < 1e-4
    assert all(result[name] > 0.5 for name in result if "speedup" in name)


def test_a_sparse_file_of_resnet_50_is_as_small_as_promised():
    result = files.compare()
    assert result["fp32"] <= 0.24
    assert result["fp16"] < 0.28
    assert set(result) == {"fp32", "fp16", "bf16", "load_over_dense"}


def test_claims_are_measured_on_the_same_trials_and_images():
    def record(method, wished, right, target, seed, average=0.95):
        bits, share = pack_bits(torch.tensor(right)), sum(right) / len(right)
        options = {"dense.objective": "erm", "prune.average": average}
        about = ("run", method, options, "PACS", (target,), seed, wished, 0.0, 0.5, share)
        return Record(*about, series=method, dense="Dense", right={target: bits})

    yes, no = [True] * 3 + [False], [True] * 2 + [False] * 2
    records = [record("Dense", None, no, target, seed) for target, seed in (("a", 0), ("b", 0), ("a", 1))]
    records += [record("DAP", "0.8", yes, "a", 0), record("DAP", "0.8", no, "a", 1)]
    records += [record("DAP", "0.8", no, "a", 0, average=0.0), record("Magnitude", "0.8", [False] * 4, "a", 0)]
    found = {claim.text: claims.measure(claim) for claim in claims.claims(records, [])}
    kept = found["at 80 %, DAP keeps the dense accuracy"]
    assert kept is not None
    assert (kept.mean, kept.seeds) == (12.5, 2)  # b has no DAP
    assert kept.low <= 0 < 12.5 < kept.high
    first = claims.measure(claims.claims(records, [])[0], first_seed=True)
    assert first is not None
    assert (first.mean, first.seeds) == (25, 1)
    assert claims.verdict(replace(claims.claims(records, [])[0], least=5), kept, first) == "holds, within the noise"
    beaten = next(claim for claim in claims.claims(records, []) if "magnitude" in claim.text)
    assert claims.verdict(beaten, claims.measure(beaten), None) == "holds"
    assert found["at 80 %, averaged masks beat raw ones (ours)"].mean == 25
    assert found["at 90 %, raw masks keep 98 % of it"] is None
