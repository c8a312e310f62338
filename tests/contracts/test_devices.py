"""Every tensor is made on a device that the code names, never on torch's default device.

Model and data live on the CPU, and the default device is "meta", which holds no values. A tensor made without a device
cannot be mixed with others or read. So a mistake that would only show on a GPU is an error here.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches, make_classifier, make_model
from dap.config import PruneConfig, SwadConfig, TrainConfig
from dap.criteria import CRITERIA, Calibration
from dap.data import digits
from dap.evaluation import accuracy
from dap.evaluation.assessment import assess_logits, predictions
from dap.evaluation.attacks import under_attack
from dap.evaluation.fgsm import FGSM
from dap.evaluation.pgd import PGD
from dap.evaluation.pixels import InPixels
from dap.masks.allocation import ALLOCATIONS
from dap.masks.attach import maskable_weights
from dap.method.gates import by_output_channel
from dap.models.sparse import load_sparse, save_sparse
from dap.objectives import OBJECTIVES
from dap.specs.methods import METHODS
from dap.structure import find_channels, remove_channels

_OPTIMISERS = str(Path(torch.optim.__file__).parent)


class MetaByDefault(TorchFunctionMode):
    """`torch.set_default_device("meta")`, for all but torch's optimisers: Adam counts its steps on the default."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None and not _in_an_optimiser():
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _in_an_optimiser() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OPTIMISERS):
            return True
        frame = frame.f_back
    return False


def sources() -> dict[str, TensorDataset]:
    return {domain: TensorDataset(*batch) for domain, batch in make_batches(size=16).items()}


def test_it_finds_a_tensor_without_a_device():
    x = torch.ones(2)
    with MetaByDefault(), pytest.raises(RuntimeError, match="device"):
        x.copy_(x.cumsum(0)).index_fill_(0, torch.tensor([0, 1]), 1.0)
    with MetaByDefault():
        assert torch.zeros(2, device=x.device).equal(torch.zeros_like(x))


@pytest.mark.parametrize("options", [{}, {"hard": True}, {"average": 0.5}, {"alpha": 0.0}], ids=str)
def test_learning_masks(options, tmp_path):
    model, data = make_model("convolutional"), sources()
    config = PruneConfig(steps=6, target_sparsity=0.6, f_update=2, batch_size=4, **options)
    with MetaByDefault():
        path = dap.learn_masks(
            model, data, config, milestones=(0.2,), validation=data, watch=data, checkpoint=tmp_path / "a"
        )
        again = dap.learn_masks(
            model, data, config, milestones=(0.2,), validation=data, watch=data, checkpoint=tmp_path / "a"
        )
        assert again.masks == path.masks
        masks = [path.masks_at(0.5), path.pruner.sampled_masks(0)]
        dap.bake(model, masks[0])
        masks[0].save(tmp_path / "masks.dap")
        assert dap.Masks.load(tmp_path / "masks.dap") == masks[0]
    assert all(mask.device.type == "cpu" for found in masks for mask in found.values())


def test_steps_on_whole_channels():
    model, batches = make_model("convolutional"), make_batches()
    with MetaByDefault():
        pruner = dap.Pruner(model, PruneConfig(steps=3, target_sparsity=0.5), granularity=by_output_channel)
        for _ in range(3):
            pruner.step(batches)
        pruner.masks(0.5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_fine_tuning_and_learning_with_an_objective(name, tmp_path):
    model, data = make_classifier(), sources()
    swad = SwadConfig() if name == "erm" else None
    config = TrainConfig(steps=3, batch_size=4, check_every=1, freeze_norms=False, swad=swad)
    with MetaByDefault():
        dense = dap.train(model, data, config, objective=name, validation=data, watch=data, checkpoint=tmp_path / "a")
        dap.train(model, data, config, objective=name, validation=data, watch=data, checkpoint=tmp_path / "a")
        path = dap.learn_masks(model, data, PruneConfig(steps=3, batch_size=4), objective=dense.objective)
        dap.finetune(model, path.masks_at(0.5), data, config, objective=dense.objective, validation=data)
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())


@pytest.mark.parametrize("method", sorted(CRITERIA.keys() - {"control"}))
def test_pruning(method):
    model, data = make_classifier(), sources()
    by_channel = {name for name in ALLOCATIONS if "channels" in name}
    allocations = by_channel if METHODS[method].by_channel else {*ALLOCATIONS, "2:4"}
    config, train = PruneConfig(steps=3, target_sparsity=0.5, batch_size=4), TrainConfig(steps=2, batch_size=4)
    with MetaByDefault():
        calibration = Calibration(data, batches=1, batch_size=4)
        for allocation in sorted({*allocations, "flops", "flops_uniform"}):
            sparsities = None if ":" in allocation else [0.2]
            options: dict[str, Any] = {"allocation": allocation, "recalibrated": True}
            pruned = list(dap.prune(model, calibration, method, sparsities, config=config, train=train, **options))
            assert len(pruned) == 1


def test_channels_are_found_priced_and_removed():
    model, images = make_classifier(), make_batches()["domain 0"][0]
    weights = maskable_weights(model)
    with MetaByDefault():
        channels = find_channels(model, images)
        scores = channels.scores_of({name: weight.detach() for name, weight in weights.items()})
        for uniform in (False, True):
            kept = channels.cut(scores, 0.3, uniform=uniform)
            assert channels.flops(kept) <= 0.7
            masks = channels.masks(kept)
            assert torch.equal(channels.kept(masks), kept)
            remove_channels(model, masks)(images)


def test_evaluation():
    model = make_model("convolutional").eval()
    inputs, labels = make_batches()["domain 0"]
    data = TensorDataset(inputs.sigmoid(), labels)
    with MetaByDefault():
        accuracy(model, data)
        assess_logits(*predictions(model, data))
        pixels = InPixels(model, (0.5,) * 3, (0.5,) * 3)
        for attack in (FGSM(0.1), PGD(0.1, 2, restarts=2)):
            under_attack(pixels, {"domain 0": data}, attack)


def test_digits_and_sparse_files(tmp_path, monkeypatch):
    monkeypatch.setenv("DAP_CACHE", str(tmp_path / "cache"))
    model = make_model("tied")
    with MetaByDefault():
        built, read = digits(), digits()
        assert all(torch.equal(built[domain].tensors[0], read[domain].tensors[0]) for domain in built)
        save_sparse(model.state_dict(), tmp_path / "sparse.safetensors")
        found = load_sparse(tmp_path / "sparse.safetensors")
    assert all(torch.equal(tensor, found[name]) for name, tensor in model.state_dict().items())
