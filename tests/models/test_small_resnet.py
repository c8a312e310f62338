import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dap.models import small_resnet


@pytest.mark.parametrize(("classes", "width"), [(10, 24), (3, 4)])
def test_logits_have_a_column_per_class(classes: int, width: int) -> None:
    model = small_resnet(classes, width)
    assert model(torch.rand(5, 3, 32, 32)).shape == (5, classes)


def test_default_is_small_but_worth_pruning() -> None:
    assert 200_000 < sum(p.numel() for p in small_resnet().parameters()) < 700_000


def test_three_stages_of_two_blocks() -> None:
    model = small_resnet(width=4)
    shapes: list[torch.Size] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.register_forward_hook(lambda _module, _inputs, output: shapes.append(output.shape[1:]))
    model(torch.rand(2, 3, 32, 32))
    assert shapes == [(4, 16, 16)] * 5 + [(8, 8, 8)] * 4 + [(16, 4, 4)] * 4


def test_shortcut_carries_the_input() -> None:
    model = small_resnet(width=4).eval()
    block = model.get_submodule("network.features.stage1.0")
    for conv in (m for m in block.modules() if isinstance(m, nn.Conv2d)):
        nn.init.zeros_(conv.weight)
    x = torch.randn(2, 4, 16, 16)
    assert torch.equal(block(x), F.relu(x))


def test_shows_the_stem_and_three_stages() -> None:
    model = small_resnet(width=4)
    outputs = model(torch.rand(2, 3, 32, 32), full=True)
    assert [tuple(stage.shape[1:]) for stage in outputs.stages] == [(4, 16, 16), (4, 16, 16), (8, 8, 8), (16, 4, 4)]
    assert model.stage_channels == (4, 4, 8, 16)
    assert outputs.features.shape == (2, model.feature_size)


def test_a_seed_gives_the_weights_it_always_gave() -> None:
    # Sums of the first and the last weight under seed 0, from before the network could show its features.
    torch.manual_seed(0)
    weights = [weight for weight in small_resnet().parameters() if weight.ndim > 1]
    sums = [weights[0].double().sum().item(), weights[-1].double().sum().item()]
    assert sums == pytest.approx([-1.027989, -0.494222], abs=1e-5)


def test_every_weight_learns() -> None:
    model = small_resnet(width=4)
    F.cross_entropy(model(torch.rand(4, 3, 32, 32)), torch.arange(4)).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_learns_and_remembers_in_eval_mode() -> None:
    torch.manual_seed(0)
    model = small_resnet(classes=3, width=4)
    images, labels = torch.rand(30, 3, 32, 32), torch.arange(30) % 3
    images[torch.arange(30), labels] += 1  # the colour tells the class
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        assert (model(images).argmax(1) == labels).float().mean() > 0.9
        # In eval mode an image's logits do not depend on its company.
        torch.testing.assert_close(model(images[:1]), model(images)[:1])
