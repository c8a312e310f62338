"""Sparse files: exact for every precision, small, and never silently wrong."""

import json
import math
from contextlib import suppress

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from dap.errors import DapError
from dap.models import load_sparse, save_sparse
from dap.models import sparse as module

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def same_bits(one, other) -> bool:
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    dtype=st.sampled_from(DTYPES),
    share=st.floats(0, 1),
    chunk=st.sampled_from([8, 64, 2**20]),
    seed=st.integers(0, 99),
)
def test_what_comes_back_is_what_went_in(shape, dtype, share, chunk, seed, tmp_path_factory):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator).to(dtype)
    weight[torch.rand(shape, generator=generator) < share] = 0
    tensors = {"layer::bits": weight, "count": torch.tensor(3), "b": torch.tensor([0.0, -0.0, math.nan, math.inf, 0.0])}
    file = tmp_path_factory.mktemp("sparse") / "x.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        save_sparse(tensors, file)
        found = load_sparse(file)
    assert set(found) == set(tensors)
    assert all(same_bits(found[name], tensor) for name, tensor in tensors.items())


def test_it_is_as_small_as_it_can_be(tmp_path):
    weight = torch.randn(1000, 1000)
    weight[torch.rand(1000, 1000) < 0.8] = 0
    save_sparse({"w": weight}, tmp_path / "sparse.safetensors", {"said": "so"})
    expected = int((weight != 0).sum()) * 4 + weight.numel() / 8
    assert expected < (tmp_path / "sparse.safetensors").stat().st_size < expected + 1000
    with safetensors.safe_open(tmp_path / "sparse.safetensors", "pt") as file:
        assert file.metadata()["said"] == "so"
    dense = {"w": torch.randn(10, 10)}  # what would not be smaller stays as it is
    save_sparse(dense, tmp_path / "dense.safetensors")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "dense.safetensors")["w"], dense["w"])


def test_every_damaged_byte_is_noticed(tmp_path):
    weight = torch.randn(8, 40)
    weight[torch.rand(8, 40) < 0.7] = 0
    file = tmp_path / "x.safetensors"
    save_sparse({"w": weight, "b": torch.randn(8)}, file, {"said": "word for word"})
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with suppress(DapError):  # the metadata's spelling may differ, its meaning may not
            assert torch.equal(load_sparse(file)["w"], weight)
            with safetensors.safe_open(file, "pt") as found:
                assert found.metadata()["said"] == "word for word"
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(DapError, match="damaged"):
            load_sparse(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DapError, match="no sparse file at"):
        load_sparse(tmp_path / "none")
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "plain.safetensors", {"about": json.dumps({})})
    with pytest.raises(DapError, match="is not a sparse file of dap"):
        load_sparse(tmp_path / "plain.safetensors")
