import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dap.errors import DapError
from dap.masks.allocation import global_masks
from dap.masks.attach import bake, maskable_weights
from dap.models import Classifier, create_classifier, small_resnet
from dap.runtime.outputs import Outputs


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 6, 3)

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        first = self.first(images)
        second = self.second(first)
        return second.mean((2, 3)), [first, second]


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def trained(model: Classifier) -> Classifier:
    """With running statistics that are not the initial ones."""
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))
    return model.eval()


@pytest.fixture(params=["resnet18", "vit_tiny_patch16_224", "small_resnet"])
def model(request: pytest.FixtureRequest) -> Classifier:
    torch.manual_seed(0)
    pixels = 64 if "vit" in request.param else None
    return trained(create_classifier(request.param, classes=3, pixels=pixels))


def assert_equal(left: Outputs, right: Outputs) -> None:
    assert len(left.stages) == len(right.stages)
    for one, other in zip(left.tensors(), right.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_own_parts() -> None:
    features, head = pooled(), nn.Linear(6, 2)
    model = Classifier.of(features, head)
    images = torch.randn(5, 3, 8, 8)
    outputs = model(images, full=True)
    assert torch.equal(outputs.features, features(images))
    assert torch.equal(outputs.logits, head(features(images)))
    assert torch.equal(model(images), outputs.logits)
    assert (outputs.stages, model.feature_size, model.classes) == ((), 6, 2)
    names = ("features.0.weight", "features.0.bias", "head.weight", "head.bias")
    assert list(model.state_dict()) == [f"network.{name}" for name in names]


def test_own_parts_with_stages() -> None:
    model = Classifier.of(Stages(), nn.Linear(6, 2), stage_channels=(4, 6))
    outputs = model(torch.randn(5, 3, 8, 8), full=True)
    assert model.stage_channels == (4, 6) == tuple(stage.shape[1] for stage in outputs.stages)
    assert torch.equal(model.head(outputs.stages[-1].mean((2, 3))), outputs.logits)


def test_only_asking_for_stages_that_are_not_there_is_an_error() -> None:
    model = Classifier.of(pooled(), nn.Linear(6, 2))
    with pytest.raises(DapError, match="the network of this classifier exposes no stages.*stage_channels="):
        _ = model.stage_channels
    with pytest.raises(DapError, match="the head is a Sequential"):
        Classifier.of(pooled(), nn.Sequential(nn.Linear(6, 2)))  # pyright: ignore


def test_plain_logits_run_the_network_alone(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 3, 64, 64)
    outputs = model(images, full=True)
    assert isinstance(outputs, Outputs)
    monkeypatch.setattr(model, "_encoder", None)
    logits = model(images)
    assert type(logits) is Tensor
    assert torch.equal(logits, outputs.logits)


def test_a_copy_is_independent(model: Classifier) -> None:
    images = torch.randn(2, 3, 64, 64)
    before = model(images, full=True)
    twin = copy.deepcopy(model)
    assert_equal(twin(images, full=True), before)
    nn.init.zeros_(twin.head.weight)
    nn.init.zeros_(twin.head.bias)
    assert not twin(images, full=True).logits.any()
    assert_equal(model(images, full=True), before)


def test_state_dict_round_trip(model: Classifier) -> None:
    images = torch.randn(2, 3, 64, 64)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    other.load_state_dict(model.state_dict())
    assert_equal(other(images, full=True), model(images, full=True))


def test_compiles_into_one_graph(model: Classifier) -> None:
    torch._dynamo.reset()
    images = torch.randn(2, 3, 64, 64)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_equal(compiled(images, full=True), model(images, full=True))
    assert torch.equal(compiled(images), model(images))


@pytest.mark.parametrize("name", ["resnet18", "small_resnet"])
def test_masked_weights_reach_every_output(name: str) -> None:
    """Through functional_call as through baked zeros."""
    torch.manual_seed(0)
    model = trained(create_classifier(name, classes=3))
    weights = maskable_weights(model)
    masks = global_masks({weight: torch.rand_like(value) for weight, value in weights.items()}, 0.5)
    masked = {weight: value.detach() * masks[weight] for weight, value in weights.items()}
    images = torch.randn(2, 3, 64, 64)
    outputs = functional_call(model, masked, (images,), {"full": True})
    assert_equal(outputs, bake(model, masks)(images, full=True))
    assert not torch.equal(outputs.logits, model(images))
    assert torch.equal(outputs.logits, functional_call(model, masked, (images,)))


def test_channels_last_and_half_precision() -> None:
    torch.manual_seed(0)
    model = trained(small_resnet(3, width=8))
    images = torch.randn(2, 3, 32, 32)
    plain = model(images, full=True)
    rows = copy.deepcopy(model).to(memory_format=torch.channels_last)  # pyright: ignore
    outputs = rows(images.to(memory_format=torch.channels_last), full=True)
    assert outputs.stages[0].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(outputs.logits, plain.logits)
    with torch.autocast("cpu", torch.bfloat16):
        halves = model(images, full=True)
        assert torch.equal(halves.logits, model(images))
    torch.testing.assert_close(halves.logits.float(), plain.logits, rtol=0.1, atol=0.05)


def test_gradients_flow_from_every_output(model: Classifier) -> None:
    first = next(model.parameters())
    for tensor in model(torch.randn(2, 3, 64, 64), full=True).tensors():
        (gradient,) = torch.autograd.grad(tensor.square().sum(), first, retain_graph=True)
        assert gradient.any()
