"""Criteria against their formulas, worked out the plain way."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from conftest import make_batches, make_classifier, make_model, make_objective
from dap.config import PruneConfig, TrainConfig
from dap.criteria import Calibration, agnostic, dap, dss, ior, magnitude, movement, random, taylor, wanda
from dap.criteria.prune import prune
from dap.errors import DapError
from dap.masks.attach import maskable_weights
from dap.method.learn import learn_masks
from dap.runtime.sources import batch_stream


def calibration(**options) -> Calibration:
    sources = {domain: TensorDataset(*batch) for domain, batch in make_batches(size=16).items()}
    return Calibration(sources, **{"batches": 3, "batch_size": 5, **options})


def batches_of(data: Calibration) -> list[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    streams = {domain: batch_stream(domain, source, 5, 0) for domain, source in data.sources.items()}
    return [{domain: next(stream) for domain, stream in streams.items()} for _ in range(3)]


def gradients(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    weights = maskable_weights(model)
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values()), retain_graph=True), strict=True))


def test_magnitude_is_the_absolute_value():
    model = make_model("tied")
    assert torch.equal(magnitude(model)["head.weight"], model.get_parameter("head.weight").abs())


def test_random_does_not_depend_on_the_choice_of_weights():
    model = make_model("tied")
    assert torch.equal(random(model)["head.weight"], random(model, include=("head.*",))["head.weight"])


@pytest.mark.parametrize("kind", ["tied", "convolutional", "attention"])
def test_taylor(kind):
    model, data = make_model(kind).eval(), calibration()
    scores = taylor(model, data)
    for name, weight in maskable_weights(model).items():
        squares = [
            (gradients(model, F.cross_entropy(model(x), y))[name] * weight) ** 2
            for batches in batches_of(data)
            for x, y in batches.values()
        ]
        torch.testing.assert_close(scores[name], torch.stack(squares).mean(0).detach(), rtol=1e-4, atol=1e-9)


def test_taylor_under_the_dense_models_objective():
    model = make_classifier().eval()
    data = calibration()
    objective = make_objective("coral", model, data.sources)
    erm, coral = taylor(model, data), taylor(model, calibration(objective=objective))
    assert not torch.allclose(erm["network.features.stem.0.weight"], coral["network.features.stem.0.weight"])


def test_movement():
    model, data, rate = make_model("tied"), calibration(), 1e-2
    scores = movement(model, data, config=TrainConfig(steps=3, learning_rate=rate))
    plain = copy.deepcopy(model)
    adam = torch.optim.Adam(plain.parameters(), lr=rate)
    expected = {name: torch.zeros_like(weight) for name, weight in maskable_weights(plain).items()}
    for batches in batches_of(data):
        adam.zero_grad()
        torch.stack([F.cross_entropy(plain(x), y) for x, y in batches.values()]).mean().backward()
        for name, weight in maskable_weights(plain).items():
            assert weight.grad is not None
            expected[name] -= weight.detach() * weight.grad
        adam.step()
    for name in expected:
        torch.testing.assert_close(scores[name], expected[name], rtol=1e-3, atol=1e-7)
    assert scores.model is not None
    for name, weight in scores.model.named_parameters():
        torch.testing.assert_close(weight, plain.get_parameter(name), rtol=1e-3, atol=1e-4)


def test_movement_moves_weights_that_were_frozen():
    model = make_model("tied").requires_grad_(False)
    scores = movement(model, calibration(), config=TrainConfig(steps=2))
    assert scores.model is not None
    assert not torch.equal(scores.model.get_parameter("head.weight"), model.get_parameter("head.weight"))
    assert not model.get_parameter("head.weight").requires_grad


def patches(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """What each weight of a kernel meets, [groups, in / groups · kernel, images · positions]."""
    columns = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # pyright: ignore
    return columns.unflatten(1, (layer.groups, -1)).permute(1, 2, 0, 3).flatten(2)


def test_wanda_of_convolutions_and_a_linear_layer():
    model, data = make_model("convolutional").eval(), calibration()
    scores = wanda(model, data)
    squares, images = {"0": 0, "3": 0, "9": 0}, 0
    for x, _ in (batch for batches in batches_of(data) for batch in batches.values()):
        images += len(x)
        for name, layer in model.named_children():
            if isinstance(layer, nn.Conv2d):
                squares[name] = squares[name] + patches(layer, x).square().sum(2)
            elif isinstance(layer, nn.Linear):
                squares[name] = squares[name] + x.square().sum(0, keepdim=True)
            x = layer(x)
    for name, total in squares.items():
        weight = model.get_parameter(f"{name}.weight").detach()
        per_group = (total / images).sqrt()  # [groups, inputs of an output]
        norms = per_group.repeat_interleave(len(weight) // len(per_group), 0).view(weight.shape).detach()
        torch.testing.assert_close(scores[f"{name}.weight"], weight.abs() * norms, rtol=1e-4, atol=1e-6)


def test_wanda_sees_inside_attention():
    model, data = make_model("attention").eval(), calibration(batches=1)
    scores = wanda(model, data)
    layer = model.get_submodule("encoder")
    attention = layer.get_submodule("self_attn")
    tokens, mixed, images = [], [], 0
    for x, _ in batches_of(data)[0].values():
        seen = model.get_submodule("patches")(x).flatten(2).transpose(1, 2)
        query, key, value = F.linear(seen, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)  # pyright: ignore
        heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (query, key, value)]
        mixed.append(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2).flatten(0, 1))
        tokens.append(seen.flatten(0, 1))
        images += len(x)
    for name, inputs in {"in_proj_weight": tokens, "out_proj.weight": mixed}.items():
        weight = attention.get_parameter(name).detach()
        expected = weight.abs() * (torch.cat(inputs).detach().square().sum(0) / images).sqrt()
        torch.testing.assert_close(scores[f"encoder.self_attn.{name}"], expected, rtol=1e-4, atol=1e-6)


def test_wanda_adds_up_the_uses_of_a_tied_weight():
    model, data = make_model("tied"), calibration(batches=1)
    scores = wanda(model, data)
    inputs, images = [], 0
    for x, _ in batches_of(data)[0].values():
        first = torch.relu(model.get_submodule("stem")(x.flatten(1)))
        inputs += [first, torch.relu(model.get_submodule("first")(first))]
        images += len(x)
    weight = model.get_parameter("first.weight").detach()
    expected = weight.abs() * (torch.cat(inputs).detach().square().sum(0) / images).sqrt()
    torch.testing.assert_close(scores["first.weight"], expected, rtol=1e-4, atol=1e-6)


class Standardised(nn.Module):
    """A linear layer whose weight is not used as it is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.linear(images.flatten(1), self.layer.weight * 2)


@pytest.mark.parametrize("criterion", [wanda, dss])
def test_what_cannot_be_looked_into_is_refused(criterion):
    with pytest.raises(DapError, match=r"layer.weight is used by aten.mul.Tensor, .* choose another method"):
        criterion(Standardised(), calibration())


def test_ior():
    model, data = make_model("convolutional").eval(), calibration()
    scores = ior(model, data)
    expected = {name: torch.zeros(len(weight)) for name, weight in maskable_weights(model).items()}
    for batches in batches_of(data):
        risks = torch.stack([F.cross_entropy(model(x), y) for x, y in batches.values()])
        for loss in (risks.mean(), risks.var(correction=0)):
            for name, gradient in gradients(model, loss).items():
                change = (gradient * model.get_parameter(name)).flatten(1).sum(1)
                expected[name] += change.detach() ** 2 / 3
    for name, score in scores.items():
        columns = score.flatten(1)
        assert (columns == columns[:, :1]).all()
        torch.testing.assert_close(columns[:, 0], expected[name], rtol=1e-3, atol=1e-8)


def test_dss():
    model, data = make_model("convolutional").eval(), calibration()
    scores = dss(model, data)
    maps = []
    for domain in data.sources:
        images = torch.cat([batches[domain][0] for batches in batches_of(data)])
        hidden = torch.relu(model[1](model[0](images)))  # pyright: ignore
        maps.append(model[3](hidden).mean(0).flatten(1).detach())  # pyright: ignore
    pairs = list(itertools.combinations(maps, 2))
    cosine = sum((one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)) for one, other in pairs) / len(pairs)
    torch.testing.assert_close(scores["3.weight"][:, 0, 0, 0], cosine, rtol=1e-4, atol=1e-5)
    assert scores["0.weight"].eq(math.inf).all()  # the first convolution
    assert scores["9.weight"].eq(math.inf).all()  # the head
    with pytest.raises(DapError, match="DSS compares the source domains, and there is only 1"):
        dss(model, Calibration({"alone": next(iter(data.sources.values()))}))


def test_dss_keeps_layers_without_places_whole():
    squeezed = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8, 3))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), *squeezed).eval()
    scores = dss(model, calibration())
    assert scores["4.weight"].eq(math.inf).all()
    assert scores["2.weight"].isfinite().all()


def test_dap_is_the_ranking_of_mask_learning_and_its_snapshots():
    model, data = make_model("convolutional"), calibration()
    config = PruneConfig(steps=30, target_sparsity=0.7, batch_size=5, alpha=2.0)
    scores = dap(model, data, config=config, milestones=(0.4,))
    path = learn_masks(model, data.sources, config, milestones=(0.4,))
    assert all(
        torch.equal(scores[name], value) for name, value in path.pruner.layout.expand(path.pruner.ranking()).items()
    )
    assert scores.passed[0.4] == path.snapshots[0.4].cut
    assert scores.passed[0.4].sparsity == pytest.approx(0.4, abs=1e-3)
    ablation = agnostic(model, data, config=config)
    plain = learn_masks(model, data.sources, PruneConfig(steps=30, target_sparsity=0.7, batch_size=5, alpha=0.0))
    assert torch.equal(ablation["0.weight"].flatten(), plain.pruner.ranking()[:216])
    assert not torch.equal(ablation["0.weight"], scores["0.weight"])


@pytest.mark.parametrize(
    ("options", "message"), [({"batches": 0}, "batches is 0"), ({"sources": {}}, "no source domains")]
)
def test_calibration_names_what_is_wrong(options, message):
    with pytest.raises(DapError, match=message):
        Calibration(**{"sources": {"a": []}, **options})


class Counting(nn.Module):
    """Writes to a buffer, has a damaged layer that is left out, and works in double precision."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 6, 3)
        self.extra = nn.Linear(6, 3)
        self.head = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))
        nn.init.constant_(self.extra.weight, math.nan)

    def forward(self, images):
        self.get_buffer("count").add_(1)
        hidden = self.second(torch.relu(self.first(images))).mean((2, 3))
        return self.head(torch.relu(hidden))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["random", "magnitude", "taylor", "wanda", "ior", "dss"])
def test_other_precisions_and_models_that_write(name, dtype):
    model = Counting().to(dtype)
    sources = {domain: TensorDataset(x.to(dtype), y) for domain, (x, y) in make_batches().items()}
    data = Calibration(sources, batches=1, batch_size=4)
    for pruned in prune(model, data, name, [0.3], allocation="channels", config=PruneConfig(exclude=("extra.*",)),
                        finetuned=False):  # fmt: skip
        assert pruned.masks["head.weight"].all()
        assert not pruned.masks["second.weight"].all()
    assert model.get_buffer("count") == 0


def test_sources_that_can_be_read_once():
    batches = make_batches(size=4)
    data = Calibration({domain: iter([batch]) for domain, batch in batches.items()}, batches=1)
    (pruned,) = prune(make_model("convolutional"), data, "taylor", [0.3], allocation="channels")
    assert pruned.masks["9.weight"].all()


@pytest.mark.parametrize("criterion", [taylor, wanda, ior, dss])
def test_images_with_nan_are_named(criterion):
    batches = make_batches()
    batches["domain 1"][0][2] = math.nan
    sources = {domain: TensorDataset(*batch) for domain, batch in batches.items()}
    with pytest.raises(DapError, match="domain 'domain 1': the inputs hold NaN or infinity"):
        criterion(make_model("convolutional"), Calibration(sources, batches=5, batch_size=6))


def test_dss_needs_images_of_one_size():
    sources = {"small": [make_batches()["domain 0"]], "large": [(torch.randn(4, 3, 12, 12), torch.zeros(4).long())]}
    with pytest.raises(DapError, match="give all domains images of one size"):
        dss(make_model("convolutional"), Calibration(sources, batches=1))


def test_inference_mode_does_not_hide_products():
    with torch.inference_mode():
        scores = wanda(make_model("convolutional"), calibration(batches=1))
    assert scores["0.weight"].gt(0).any()
