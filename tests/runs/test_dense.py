import pytest
import torch
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches
from dap.models import ModelCard, small_resnet
from dap.objectives import OBJECTIVES
from dap.runs.dense import load_dense, save_dense
from dap.specs.file_names import MODEL, OBJECTIVE

SOURCES = {name: TensorDataset(*batch) for name, batch in make_batches(size=20).items()}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_comes_back_with_the_same_masks_to_learn(name, tmp_path):
    torch.manual_seed(0)
    options = {"miro": {"weight": 0.01}, "mmd": {"bandwidths": [0.5, 1.0]}, "dann": {"width": 8}}.get(name, {})
    config = dap.TrainConfig(steps=3, batch_size=4)
    dense = dap.train(small_resnet(3, width=4), SOURCES, config, objective=OBJECTIVES[name](**options))
    assert isinstance(dense.model, dap.Classifier)
    card = ModelCard(("a", "b", "c"), pixels=8)
    save_dense(tmp_path, dense.model, dense.objective, tuple(SOURCES), card)

    model, objective, found = load_dense(tmp_path)
    assert found.class_names == card.class_names
    assert found.notes["sources"] == list(SOURCES)
    assert objective.options() == OBJECTIVES[name](**options).options()
    assert objective.options().items() >= options.items()
    saved = dense.objective.state_dict()
    assert all(torch.equal(saved[key], value) for key, value in objective.state_dict().items())
    prune = dap.PruneConfig(steps=3, f_update=1, batch_size=4)
    first = dap.learn_masks(dense.model, SOURCES, prune, objective=dense.objective)
    again = dap.learn_masks(model, SOURCES, prune, objective=objective)
    assert torch.equal(first.pruner.effective, again.pruner.effective)


def test_what_is_missing_or_unknown_is_named(tmp_path):
    with pytest.raises(dap.DapError, match=f"no {MODEL} in"):
        load_dense(tmp_path)
    model = small_resnet(3, width=4)
    save_dense(tmp_path, model, OBJECTIVES["erm"](), ("a",), ModelCard(("a", "b", "c"), pixels=8))
    (tmp_path / OBJECTIVE).write_bytes(b"?")
    with pytest.raises(dap.DapError, match="damaged"):
        load_dense(tmp_path)
    mine = dap.objectives.Objective.of(lambda outputs, labels: torch.zeros(()))
    with pytest.raises(dap.DapError, match="is not in dap.objectives.OBJECTIVES"):
        save_dense(tmp_path, model, mine, ("a",), ModelCard(("a", "b", "c"), pixels=8))
