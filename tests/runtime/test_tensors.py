import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from dap.masks import Masks
from dap.models import ModelCard, save_classifier, save_sparse, small_resnet
from dap.runs.opening import save_model
from dap.runtime.checkpoints import save_state
from dap.runtime.tensors import save_tensors

STATE = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(3, dtype=torch.int64), "c": torch.zeros(5).half()}
CARD = ModelCard(("cat", "dog"), pixels=32)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(metadata=st.dictionaries(TEXT, TEXT, min_size=1))
def test_metadata_comes_back_sorted_and_tensors_stay_where_they_were(metadata, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "sorted.safetensors"
    save_tensors(path, STATE, metadata)
    with safe_open(path, "pt") as file:
        assert file.metadata() == metadata
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in STATE.items())
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert size % 8 == 0  # tensors are aligned
    assert list(json.loads(data[8 : 8 + size])["__metadata__"]) == sorted(metadata)


WRITERS = {
    "tensors": lambda path: save_tensors(path, STATE, {name: name for name in "hgfedcba"}),
    "classifier": lambda path: save_classifier(_model(), path, CARD),
    "sparse classifier": lambda path: save_classifier(_model(), path, CARD, sparse=True),
    "sparse": lambda path: save_sparse(STATE, path, {"one": "1", "two": "2"}),
    "own model": lambda path: save_model(torch.nn.BatchNorm2d(3), path, CARD),
    "checkpoint": lambda path: save_state(path, STATE, {"step": 3}, "test"),
    "masks": lambda path: Masks({"w": torch.tensor([True, False])}).save(path),
}


def _model():
    torch.manual_seed(0)
    return small_resnet(2)


@pytest.mark.parametrize("writer", WRITERS)
def test_the_same_content_is_the_same_file(writer, tmp_path):
    files = [tmp_path / f"{number}.safetensors" for number in range(8)]
    for file in files:
        WRITERS[writer](file)
    assert len({file.read_bytes() for file in files}) == 1
