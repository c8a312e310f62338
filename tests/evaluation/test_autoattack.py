import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dap.evaluation.attacks import under_attack
from dap.evaluation.autoattack import AutoAttack
from dap.evaluation.pgd import PGD
from dap.evaluation.pixels import InPixels

pytest.importorskip("pyautoattack", reason="needs pyautoattack: pip install 'dap[robustness]'")


@pytest.mark.parametrize("classes", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4, 7, 12))])
@pytest.mark.filterwarnings("ignore")  # the library's own
def test_any_number_of_classes_and_no_weaker_than_pgd(classes):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, classes))
    model = InPixels(network, (0.5,) * 3, (0.5,) * 3).eval()
    inputs = 2 * torch.rand(10, 3, 8, 8) - 1
    labels = network(inputs).argmax(1)
    labels[1] = (labels[1] + 1) % classes
    data = {"one": TensorDataset(inputs[:2], labels[:2]), "other": TensorDataset(inputs[2:6], labels[2:6])}
    state = torch.get_rng_state()
    found = under_attack(model, data, AutoAttack(1 / 255))
    assert torch.equal(torch.get_rng_state(), state)
    assert [(row.clean, row.images, row.no_gradient) for row in found.values()] == [(0.5, 2, None), (1.0, 4, None)]
    for domain, pgd in under_attack(model, data, PGD(1 / 255, 20)).items():
        assert found[domain].accuracy <= pgd.accuracy
    assert under_attack(model, {"one": data["one"]}, AutoAttack(64 / 255))["one"].accuracy == 0
