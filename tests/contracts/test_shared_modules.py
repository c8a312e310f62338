"""Modules under several names, tied parameters: whatever runs such a model with other weights leaves it unchanged."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches
from dap.criteria import CRITERIA, Calibration
from dap.evaluation import accuracy
from dap.export import export_onnx, export_program
from dap.masks.attach import MaskedModel, call_with
from dap.models import ModelCard
from dap.models.torchvision_repair import repair_torchvision
from dap.specs.methods import METHODS
from dap.structure import find_channels, remove_channels

SOURCES = {domain: TensorDataset(*batch) for domain, batch in make_batches(size=12).items()}
IMAGES = make_batches()["domain 0"][0]
LEARN = dap.PruneConfig(steps=4, target_sparsity=0.5, f_update=2)
TRAIN = dap.TrainConfig(steps=3, learning_rate=1e-2, batch_size=6, check_every=2)


def block() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())


class Shared(nn.Module):
    """Two of four blocks are one module, or share one weight, or both; then a narrower convolution and a head."""

    def __init__(self, same_module: bool, tied: bool, as_list: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        one, two, three = block(), block(), block()
        if tied:
            three[0].weight = two[0].weight
        if as_list:
            self.blocks = nn.ModuleList([one, one, two, three])
        else:
            self.first, self.second, self.third = one, two, three
            self.alias = one if same_module else block()
        self.narrow = nn.Conv2d(8, 6, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images).relu()
        blocks = self.blocks if hasattr(self, "blocks") else [self.first, self.second, self.third, self.alias]
        for one in blocks:  # pyright: ignore
            maps = one(maps)
        return self.head(self.narrow(maps).relu().mean((2, 3)))


KINDS = {
    "two names": lambda: Shared(same_module=True, tied=False),
    "list": lambda: Shared(same_module=True, tied=False, as_list=True),
    "tied": lambda: Shared(same_module=False, tied=True),
    "both": lambda: Shared(same_module=True, tied=True),
}


@pytest.fixture(params=KINDS)
def model(request) -> nn.Module:
    return KINDS[request.param]().eval()


def calibration() -> Calibration:
    return Calibration(SOURCES, batches=2, batch_size=6)


def own_tensors(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    return {
        (path, name): tensor
        for path, module in model.named_modules(remove_duplicate=False)
        for name, tensor in {**module._parameters, **module._buffers}.items()
        if tensor is not None
    }


@contextmanager
def unchanged(model: nn.Module, bits: bool = True) -> Iterator[None]:
    """Afterwards every place of every module holds the same object, and if asked with the same bits."""
    before = own_tensors(model)
    values = {place: tensor.clone() for place, tensor in before.items()}
    yield
    after = own_tensors(model)
    assert list(after) == list(before)
    for place, tensor in after.items():
        assert tensor is before[place], place
        assert isinstance(tensor, nn.Parameter) == isinstance(before[place], nn.Parameter)
        assert not bits or torch.equal(tensor, values[place]), place


def test_every_tied_place_gets_the_weight(model):
    """As a copy of the model whose parameters are written in place."""
    masked = MaskedModel(model)
    torch.manual_seed(1)
    weights = {name: torch.randn_like(weight) for name, weight in masked.weights.items()}
    written = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in weights.items():
            written.get_parameter(name).copy_(weight)
    with unchanged(model):
        assert torch.equal(masked(weights, IMAGES), written(IMAGES))
        aliases = {name: other for other, p in model.named_parameters(remove_duplicate=False)
                   for name in weights if p is model.get_parameter(name)}  # fmt: skip
        renamed = {aliases[name]: weight for name, weight in weights.items()}  # the last of its names
        assert torch.equal(call_with(model, renamed, IMAGES), written(IMAGES))


def test_an_error_inside_the_model_leaves_it_unchanged(model):
    masked = MaskedModel(model)
    with unchanged(model), pytest.raises(RuntimeError):
        masked(masked.weights, torch.randn(2, 5, 8, 8))


def test_pruner(model):
    with unchanged(model):
        pruner = dap.Pruner(model, LEARN)
        for step in range(4):
            pruner.step(make_batches(seed=step))
    with unchanged(model):
        sparse = dap.bake(model, pruner.masks(0.5))
    relaxed = MaskedModel(model)
    weights = {name: weight * pruner.masks(0.5)[name] for name, weight in relaxed.weights.items()}
    torch.testing.assert_close(sparse(IMAGES), relaxed(weights, IMAGES))


@pytest.mark.parametrize("method", METHODS)
def test_every_method(model, method):
    """Scores, masks, a sparse model that is the dense one under its masks, and its accuracy."""
    with unchanged(model):
        for pruned in dap.prune(
            model, calibration(), method, None if METHODS[method].whole else [0.5], config=LEARN, train=TRAIN
        ):
            zeros = sum(int(pruned.model.get_parameter(name).eq(0).sum()) for name in pruned.masks)
            assert zeros == pruned.masks.total - pruned.masks.kept
            assert len(own_tensors(pruned.model)) == len(own_tensors(model))
            with unchanged(pruned.model):
                assert 0 <= accuracy(pruned.model, SOURCES["domain 0"]) <= 1


def test_every_criterion_is_covered():
    assert set(CRITERIA) == set(METHODS)


def test_training_and_finetuning_move_the_weights_and_keep_the_ties(model):
    before = copy.deepcopy(model.state_dict())
    with unchanged(model, bits=False):
        dap.train(model, SOURCES, TRAIN, validation=SOURCES)
    assert not torch.equal(model.state_dict()["stem.weight"], before["stem.weight"])
    masks = dap.allocation.per_layer(dap.criteria.magnitude(model), 0.5)
    sparse = dap.bake(model, masks)
    with unchanged(sparse, bits=False), unchanged(model):
        dap.finetune(sparse, masks, SOURCES, TRAIN)
    assert all(sparse.get_parameter(name)[~mask].eq(0).all() for name, mask in masks.items())


def test_training_is_that_of_plain_torch(model):
    """The gradient of a shared parameter is the sum over its uses."""
    plain = copy.deepcopy(model)
    batches = make_batches()
    dap.Trainer(model, dap.objectives.Erm(), dap.TrainConfig(steps=1, learning_rate=1e-2)).step(batches)
    optimiser = torch.optim.Adam(plain.parameters(), lr=1e-2)
    losses = [nn.functional.cross_entropy(plain(inputs), labels) for inputs, labels in batches.values()]
    torch.stack(losses).mean().backward()
    optimiser.step()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), weight, rtol=1e-4, atol=1e-5)


def test_channels(model):
    with unchanged(model):
        channels = find_channels(model, IMAGES)
        for pruned in dap.prune(model, calibration(), "dap", [0.05], allocation="flops", config=LEARN):
            small = remove_channels(pruned.model, pruned.masks)
            torch.testing.assert_close(small(IMAGES), pruned.model(IMAGES), rtol=1e-4, atol=1e-5)
    assert channels.total > 0


def test_export(model, tmp_path):
    sparse = dap.bake(model, dap.allocation.global_masks(dap.criteria.magnitude(model), 0.5))
    with unchanged(sparse):
        assert export_onnx(sparse, tmp_path / "model.onnx", ModelCard(("a", "b", "c"), 8), IMAGES, sparse) < 1e-5
        assert export_program(sparse, tmp_path / "model.pt2", IMAGES, sparse) < 1e-5


def test_a_backbone_with_shared_modules():
    """timm's CoaT shares the encodings of positions between blocks."""
    repair_torchvision()
    import timm

    torch.manual_seed(0)
    model = timm.create_model("coat_tiny", img_size=32, num_classes=3)
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
    assert len(paths) > len([*model.modules()])
    batches = {domain: (torch.randn(2, 3, 32, 32), torch.randint(3, (2,))) for domain in ("a", "b")}
    with unchanged(model):
        pruner = dap.Pruner(model, LEARN)
        pruner.step(batches)
        dap.bake(model, pruner.masks(0.5))


class Copied(nn.Module):
    """A shallow copy of a layer holds its parameters in the very same dictionary."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.one = nn.Linear(192, 16), nn.Linear(16, 16)
        self.two = copy.copy(self.one)
        self.head = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.stem(images.flatten(1)).relu()).relu()))


class Buffered(nn.Module):
    """A weight is also a buffer of another module, which is what runs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head, self.user = nn.Linear(192, 16), nn.Linear(16, 3), nn.Module()
        self.user.register_buffer("weight", self.stem.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(nn.functional.linear(images.flatten(1), self.user.weight).relu())  # pyright: ignore


@pytest.mark.parametrize("kind", [Copied, Buffered])
def test_tensors_that_modules_share_in_other_ways(kind):
    model = kind().eval()
    test_every_tied_place_gets_the_weight(model)
    test_an_error_inside_the_model_leaves_it_unchanged(model)
    test_pruner(model)
    with unchanged(model):
        assert 0 <= accuracy(model, SOURCES["domain 0"]) <= 1
        assert len([*dap.prune(model, calibration(), "wanda", [0.5])]) == 1
    before = model.stem.weight.detach().clone()
    with unchanged(model, bits=False):
        dap.train(model, SOURCES, TRAIN)
    assert not torch.equal(model.stem.weight, before)
