"""Held-out and watched images are checked as training images are."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conftest import make_batches
from dap import TrainConfig, learn_masks, train
from dap.config import PruneConfig
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.evaluation.assessment import predictions
from dap.training import finetune


def flat(domain: str = "domain 0", size: int = 12) -> TensorDataset:
    inputs, labels = make_batches(size=size)[domain]
    return TensorDataset(inputs.flatten(1), labels)


def broken(kind: str) -> TensorDataset:
    inputs, labels = (tensor.clone() for tensor in flat().tensors)
    if kind == "NaN":
        inputs[-1, 3] = torch.nan
    elif kind == "infinity":
        inputs[-1, 0] = torch.inf
    elif kind == "mixed":
        labels = torch.rand(len(labels), 3)
    else:
        labels[-1] = int(kind)
    return TensorDataset(inputs, labels)


WRONG = {
    "NaN": "domain 'b': the inputs hold NaN or infinity",
    "infinity": "domain 'b': the inputs hold NaN or infinity",
    "3": "domain 'b': label 3 is out of range, the model has 3 classes",
    "-1": "domain 'b': label -1 is out of range, the model has 3 classes",
    "mixed": r"domain 'b': \d+ inputs need as many whole-number labels",
}
FORMS = {
    "dataset": lambda data: data,
    "batches": lambda data: [tuple(tensor[at : at + 5] for tensor in data.tensors) for at in (0, 5, 10)],
    "loader": lambda data: DataLoader(data, batch_size=5),
}


RUNS = {
    "train": (train, TrainConfig(steps=2, batch_size=4)),
    "learn_masks": (learn_masks, PruneConfig(steps=2, target_sparsity=0.5, batch_size=4)),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(192, 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("where", ["validation", "watch"])
@pytest.mark.parametrize("run", RUNS)
def test_what_is_wrong_is_named(run, where, kind, form):
    held_out, steps = {where: {"a": flat(), "b": FORMS[form](broken(kind))}}, []
    function, config = RUNS[run]
    with pytest.raises(DapError, match=WRONG[kind]):
        function(model(), {"a": flat(), "c": flat()}, config, on_step=steps.append, **held_out)
    assert form == "loader" or not steps  # what is in memory is refused before the first step


@pytest.mark.parametrize("kind", WRONG)
def test_finetuning(kind):
    config = TrainConfig(steps=2, batch_size=4)
    with pytest.raises(DapError, match=WRONG[kind]):
        finetune(model(), None, {"a": flat()}, config, validation={"b": broken(kind)})


@pytest.mark.parametrize("measure", [accuracy, predictions])
@pytest.mark.parametrize("kind", WRONG)
def test_evaluation(measure, kind):
    with pytest.raises(DapError, match=WRONG[kind].replace("domain 'b'", "the images")):
        measure(model(), broken(kind))


def test_checking_leaves_the_model_and_the_randomness_alone():
    norm = nn.Sequential(nn.BatchNorm1d(192), nn.Dropout(), nn.Linear(192, 3)).train()
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    from dap.evaluation.accuracy import check_validation

    before = torch.get_rng_state()
    check_validation(norm, {"a": flat()})
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in norm.state_dict().items())
    assert all(module.training for module in norm.modules())
