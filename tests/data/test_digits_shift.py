"""What the built-in digits promise: sources are learnt, and the unseen domain is visibly harder."""

import pytest
import torch

from dap.config import TrainConfig
from dap.data import DOMAINS, digits, split
from dap.evaluation import accuracy
from dap.models import small_resnet
from dap.training import train


@pytest.mark.slow
@pytest.mark.parametrize("target", DOMAINS)
def test_sources_above_90_and_a_real_shift(target):
    torch.manual_seed(0)
    parts = {domain: split(data, index, 0) for index, (domain, data) in enumerate(digits().items())}
    sources = {domain: train for domain, (train, _) in parts.items() if domain != target}
    model = small_resnet()
    config = TrainConfig(steps=400, learning_rate=1e-3, freeze_norms=False, schedule="cosine")
    train(model, sources, config)
    held_out = [accuracy(model, data) for domain, (_, data) in parts.items() if domain != target]
    mean = sum(held_out) / len(held_out)
    assert mean > 0.9
    assert accuracy(model, digits()[target]) < mean - 0.1
