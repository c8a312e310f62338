import pytest
import torch

from dap.errors import DapError
from dap.runtime.checkpoints import checksum, fingerprint, load_state, save_state

TENSORS = {"a": torch.arange(12.0).view(3, 4), "b": torch.ones(5, dtype=torch.float16), "c": torch.tensor(3.0)}
VALUES = {"step": 3, "nested": {"rate": 0.1, "none": None}, "list": [1, 2]}


def test_round_trip(tmp_path):
    save_state(tmp_path / "state", TENSORS, VALUES)
    tensors, values = load_state(tmp_path / "state")
    assert values == VALUES
    assert set(tensors) == set(TENSORS)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert all(tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items())


def test_damage_is_an_error(tmp_path):
    path = tmp_path / "state"
    save_state(path, TENSORS, VALUES)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.raises(DapError, match="remove it to start again"):
            load_state(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DapError, match="damaged"):
        load_state(path)


def test_checksum_follows_values_not_layout():
    tensor = torch.randn(2, 3, 4, 4)
    assert checksum(tensor) == checksum(tensor.to(memory_format=torch.channels_last))
    assert checksum(tensor) != checksum(tensor + 1)
    assert checksum(torch.tensor(1)) != checksum(torch.tensor(2))


def test_what_cannot_be_read_is_not_called_damaged(tmp_path):
    (tmp_path / "state.safetensors").mkdir()
    with pytest.raises(IsADirectoryError):
        load_state(tmp_path / "state.safetensors")


def test_fingerprints_are_those_in_files_of_earlier_versions():
    layer = torch.nn.Linear(2, 2)
    layer.load_state_dict({"weight": torch.arange(4.0).view(2, 2), "bias": torch.ones(2)})
    assert fingerprint(layer) == fingerprint(torch.nn.Identity(), layer) == 1877575332
    with torch.no_grad():
        layer.bias[1] += 1e-6
    assert fingerprint(layer) != 1877575332


def test_a_checksum_goes_on_from_the_part_before():
    values = torch.arange(10.0)
    assert checksum(values[4:], checksum(values[:4])) == checksum(values)
