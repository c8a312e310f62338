import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dap.errors import DapError
from dap.masks import Masks

shapes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


def random_masks(shapes, seed=0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layer{i}.weight": torch.rand(shape, generator=generator) > 0.6 for i, shape in enumerate(shapes)}


@given(shapes)
def test_what_goes_in_comes_out(shapes):
    tensors = random_masks(shapes)
    for masks in (Masks(tensors), Masks.from_bytes(Masks(tensors).to_bytes())):
        assert list(masks) == list(tensors)
        assert all(torch.equal(masks[name], tensor) for name, tensor in tensors.items())
        kept, total = sum(int(t.sum()) for t in tensors.values()), sum(t.numel() for t in tensors.values())
        assert (masks.kept, masks.total) == (kept, total)
        assert masks.sparsity == 1 - kept / total
        assert masks.by_layer() == {n: 1 - int(t.sum()) / t.numel() for n, t in tensors.items()}


def test_memory_format_does_not_matter():
    mask = torch.rand(4, 3, 3, 3) > 0.5
    assert torch.equal(Masks({"w": mask.to(memory_format=torch.channels_last)})["w"], mask)


def test_equality_and_overlap():
    a = Masks({"w": torch.tensor([True, True, False, False])})
    b = Masks({"w": torch.tensor([True, False, True, False])})
    assert a == Masks({"w": torch.tensor([True, True, False, False])})
    assert a != b
    assert a != "masks"
    assert a.overlap(a) == 1
    assert a.overlap(b) == 1 / 3
    with pytest.raises(DapError, match="different models"):
        a.overlap(Masks({"v": torch.tensor([True])}))


@pytest.mark.parametrize("layers", [1, 200])
def test_files_are_bit_packed(tmp_path, layers):
    shapes = [(1_200_000 // layers,)] * layers
    masks = Masks(random_masks(shapes))
    masks.save(tmp_path / "masks.safetensors")
    size = os.path.getsize(tmp_path / "masks.safetensors")
    assert size <= masks.total / 8 * 1.02


def test_loads_in_a_plain_process_without_the_model(tmp_path):
    masks = Masks(random_masks([(5, 7), (3,)]))
    masks.save(tmp_path / "masks.safetensors")
    code = (
        "import sys, json, dap; m = dap.Masks.load(sys.argv[1]);"
        "print(json.dumps([m.sparsity, {n: m[n].tolist() for n in m}]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "masks.safetensors")], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) == [masks.sparsity, {name: masks[name].tolist() for name in masks}]


def test_refuses_a_model_of_another_shape():
    masks = Masks({"0.weight": torch.ones(3, 4).bool(), "2.weight": torch.ones(2, 3).bool()})
    masks.check(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    with pytest.raises(DapError, match=r"2\.weight has shape \(5, 3\), its mask \(2, 3\)"):
        masks.check(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5)))
    with pytest.raises(DapError, match=r"no weight '2\.weight'"):
        masks.check(nn.Sequential(nn.Linear(4, 3)))


def test_every_truncated_file_is_an_error():
    data = Masks(random_masks([(5, 7), (3,)])).to_bytes()
    for length in range(len(data)):
        with pytest.raises(DapError):
            Masks.from_bytes(data[:length])


def test_every_flipped_bit_is_an_error_or_changes_nothing():
    masks = Masks(random_masks([(5, 7), (3,)]))
    data = masks.to_bytes()
    errors = 0
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        try:
            assert Masks.from_bytes(bytes(damaged)) == masks
        except DapError:
            errors += 1
    assert errors > len(data) * 8 * 0.8  # all but the name of the format, which nothing depends on


def test_a_missing_or_foreign_file_is_an_error(tmp_path):
    with pytest.raises(DapError, match="no mask file"):
        Masks.load(tmp_path / "none.safetensors")
    (tmp_path / "foreign").write_bytes(b"PK" + bytes(100))
    with pytest.raises(DapError, match="foreign is damaged or not a mask file"):
        Masks.load(tmp_path / "foreign")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "masks.safetensors"
    masks = Masks(random_masks([(5, 7)]))
    masks.save(path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Masks(random_masks([(9,)])).save(path)
    assert Masks.load(path) == masks
    assert [file.name for file in tmp_path.iterdir()] == ["masks.safetensors"]


def test_bits_are_in_the_order_of_the_weight():
    assert np.array_equal(Masks({"w": torch.tensor([[True, False], [True, True]])})["w"].numpy(), [[1, 0], [1, 1]])
