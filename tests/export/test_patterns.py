"""2:4 as far as it goes without a GPU: torch's own conversion runs on the CPU, in the format of CUTLASS."""

import re

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.sparse import SparseSemiStructuredTensorCUSPARSELT, SparseSemiStructuredTensorCUTLASS
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)
from torch.utils.data import TensorDataset

from dap import Masks, PruneConfig, bake, prune
from dap.criteria import Calibration, dap
from dap.errors import DapError
from dap.export import patterns
from dap.export.patterns import check_pattern, semi_structured_layers, summary, to_semi_structured
from dap.masks.allocation import n_of_m
from dap.masks.attach import maskable_weights
from dap.models import ModelCard, create_classifier
from dap.runs.opening import save_model


def two_of_four(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    masks = n_of_m(2, 4)({name: weight.detach().abs() for name, weight in maskable_weights(model).items()})
    return bake(model, masks).to(dtype)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 7))


def vit() -> nn.Module:
    torch.manual_seed(0)
    return create_classifier("vit_tiny_patch16_224", 7, pixels=32).eval()


def attention() -> nn.Module:
    """With layers whose weights PyTorch's fast path reads."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    return nn.Sequential(nn.Flatten(2), encoder, nn.Linear(64, 64))


def survives(weight: Tensor) -> bool:
    """Whether torch gets back what it converted."""
    packed = sparse_semi_structured_from_dense_cutlass(weight.detach())
    return torch.equal(sparse_semi_structured_to_dense_cutlass(*packed), weight)


class OnTheCpu(SparseSemiStructuredTensorCUTLASS):
    """torch's tensor, with a dense product in place of its kernel."""

    @classmethod
    def _validate_device_dim_dtype_shape(cls, original_tensor):
        assert original_tensor.is_contiguous()

    def _mm(self, B, *, bias=None, should_transpose_dense=False, **kwargs):
        assert should_transpose_dense
        return nn.functional.linear(B, self.to_dense(), bias)


@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    n=st.integers(1, 4),
    more=st.integers(0, 3),
    share=st.floats(0, 1),
    seed=st.integers(0, 999),
)
def test_a_pattern_by_a_plain_loop(shape, n, more, share, seed):
    m = n + more
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    rows = mask.reshape(*shape[:2], -1)  # [out, in, places of the kernel]
    follows = all(
        int(rows[out, start : start + m, place].sum()) <= n
        for out in range(rows.shape[0])
        for start in range(0, rows.shape[1], m)
        for place in range(rows.shape[2])
    )
    for weights in (Masks({"w": mask}), {"w": mask * torch.tensor(-2.0)}):
        if follows:
            check_pattern(weights, n, m)
        else:
            with pytest.raises(DapError, match=f"w breaks the pattern {n}:{m}: output "):
                check_pattern(weights, n, m)


def test_the_error_says_where():
    linear, kernel = torch.zeros(3, 10), torch.zeros(2, 6, 3, 3)
    linear[2, 4:7] = 1
    check_pattern({"fc": linear, "row": torch.eye(1, 5)[0]}, 3, 4)
    with pytest.raises(DapError, match="fc breaks the pattern 2:4: output 2 keeps 3 of its inputs 4 to 7; prune with"):
        check_pattern({"conv": kernel, "fc": linear}, 2, 4)
    kernel[1, 4:, 0, 2] = 1
    where = re.escape("conv breaks the pattern 1:4: output 1 at (0, 2) of the kernel keeps 2 of its inputs 4 to 5;")
    with pytest.raises(DapError, match=where):
        check_pattern({"conv": kernel}, 1, 4)
    with pytest.raises(DapError, match="the pattern 4:2 keeps 4 of 2"):
        check_pattern({"fc": linear}, 4, 2)


def test_groups_of_a_convolution_lie_along_its_input_channels():
    """As TensorRT wants them, and a product with unfolded images whose channels come last."""
    weight = torch.randn(32, 32, 3, 3)
    weight = (weight * n_of_m(2, 4)({"w": weight.abs()})["w"]).half()
    assert all(survives(weight[:, :, row, column].contiguous()) for row in range(3) for column in range(3))
    assert survives(weight.permute(0, 2, 3, 1).reshape(32, -1))
    assert not survives(weight.flatten(1))  # as torch.nn.functional.unfold orders them


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [mlp, vit])
def test_torch_takes_every_layer_that_is_said_to_fit(make, dtype):
    model = two_of_four(make(), dtype)
    layers = semi_structured_layers(model)
    refused = [name for name, reason in layers.items() if reason]
    assert len(layers) == (3 if make is mlp else 49)
    assert {layers[name] for name in refused} == {"its 7 outputs are no multiple of 16"}
    assert len(refused) == 1
    for name in set(layers) - set(refused):
        assert survives(model.get_parameter(name))


def test_weights_that_break_the_pattern_or_are_not_half_do_not_survive():
    model = two_of_four(mlp())
    with torch.no_grad():
        model.get_parameter("1.weight")[5, 8:12] = torch.tensor([1.0, 2.0, 0.0, 3.0]).half()
    assert semi_structured_layers(model)["1.weight"] == "it is not 2:4"
    assert not survives(model.get_parameter("1.weight"))
    model = model.float()
    assert set(semi_structured_layers(model).values()) == {"float32 is neither float16 nor bfloat16"}
    assert not survives(model.get_parameter("3.weight"))


class OnAGpu(Tensor):
    """As it says."""

    is_cuda = True


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([8, 16, 32]), st.booleans())
def test_sizes_are_those_that_torch_takes(rows, columns, unit, cutlass):
    model = two_of_four(nn.Linear(columns * unit, rows * unit))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.sparse.SparseSemiStructuredTensor, "_FORCE_CUTLASS", cutlass)
        reason = semi_structured_layers(model)["weight"]
    kernels = SparseSemiStructuredTensorCUTLASS if cutlass else SparseSemiStructuredTensorCUSPARSELT
    weight = model.get_parameter("weight").detach().as_subclass(OnAGpu)
    if reason is None:
        kernels._validate_device_dim_dtype_shape(weight)
    else:
        assert re.fullmatch(r"its \d+ (outputs|inputs) are no multiple of (16|32|64)", reason)
        with pytest.raises(RuntimeError, match=r"shape .* is not supported"):
            kernels._validate_device_dim_dtype_shape(weight)


def test_the_summary_names_what_does_not_fit():
    reasons = dict.fromkeys("abcd", "it is not 2:4") | {"e": None, "f": "its 7 outputs are no multiple of 16"}
    expected = (
        "1 of 6 linear layers can run 2:4 on a GPU; a, b, c …: it is not 2:4; f: its 7 outputs are no multiple of 16"
    )
    assert summary(reasons) == expected


def test_a_gpu_is_needed():
    with pytest.raises(DapError, match=r"compute capability 8.0 \(Ampere\) or newer: the model is on cpu"):
        to_semi_structured(two_of_four(mlp()))
    with pytest.raises(DapError, match="0 of 3 linear layers can run 2:4 on a GPU; 1.weight, 3.weight, 5.weight: fl"):
        to_semi_structured(mlp())


@pytest.mark.parametrize(("make", "pixels"), [(mlp, 8), (vit, 32), (attention, 8)])
def test_converted_models_compute_the_same(make, pixels, monkeypatch):
    monkeypatch.setattr(patterns, "_check_gpu", lambda device: None)
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", OnTheCpu.from_dense)
    model = two_of_four(make(), torch.bfloat16).eval()
    images = torch.randn(2, 3, pixels, pixels, generator=torch.Generator().manual_seed(0)).bfloat16()
    sparse = to_semi_structured(model)
    converted = {name for name, weight in sparse.named_parameters() if isinstance(weight, OnTheCpu)}
    assert converted == {name for name, reason in semi_structured_layers(model).items() if reason is None}
    assert converted
    assert not any(isinstance(weight, OnTheCpu) for weight in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(sparse(images), model(images), atol=0.02, rtol=0.02)


def test_layers_that_torch_reads_past_their_forward_are_left_alone():
    layers = semi_structured_layers(two_of_four(attention()))
    assert layers.pop("2.weight") is None
    assert set(layers) == {"1.self_attn.out_proj.weight", "1.linear1.weight", "1.linear2.weight"}
    assert all(reason and reason.endswith("reads it itself") for reason in layers.values())


def test_from_the_ranking_of_dap_to_a_file_that_torch_takes(tmp_path):
    model = mlp()
    generator = torch.Generator().manual_seed(0)
    sources = {
        domain: TensorDataset(
            torch.randn(32, 3, 8, 8, generator=generator), torch.randint(7, (32,), generator=generator)
        )
        for domain in ("art", "photo", "sketch")
    }
    data, config = Calibration(sources, batch_size=8), PruneConfig(steps=8, target_sparsity=0.5)
    (pruned,) = prune(model, data, "dap", allocation="2:4", config=config)
    assert pruned.masks == n_of_m(2, 4)(dap(model, data, config=config))
    check_pattern(pruned.masks, 2, 4)
    assert pruned.masks.sparsity == 0.5

    card = ModelCard(tuple("abcdefg"), pixels=8)
    save_model(pruned.model.to(torch.float16), tmp_path / "model.safetensors", card)
    shipped = mlp().half()
    shipped.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    check_pattern({name: shipped.get_parameter(name) for name in pruned.masks}, 2, 4)
    layers = semi_structured_layers(shipped)
    assert summary(layers) == (
        "2 of 3 linear layers can run 2:4 on a GPU; 5.weight: its 7 outputs are no multiple of 16"
    )
    for name in ("1.weight", "3.weight"):
        kept = torch.where(pruned.masks[name], model.get_parameter(name), 0).half()
        assert torch.equal(shipped.get_parameter(name), kept)
        assert survives(shipped.get_parameter(name))
