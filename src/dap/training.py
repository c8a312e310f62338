"""The dense training loop."""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dap.backward import forward
from dap.errors import DapError
from dap.objectives import Erm, Objective
from dap.sources import Source, batch_stream, to_device


def train_dense(
    model: nn.Module,
    sources: Mapping[str, Source],
    *,
    steps: int,
    objective: Objective | None = None,
    learning_rate: float = 5e-5,
    batch_size: int = 32,
    freeze_norms: bool = True,
    cosine: bool = False,
    seed: int = 0,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train `model` in place with Adam, on one batch per source domain in each step. It is left in eval mode.

    Norm layers keep the statistics they came with (`freeze_norms`), as is usual in domain generalisation for pretrained
    networks; a network trained from scratch needs `freeze_norms=False`. The learning rate is constant, or falls to 0
    along a `cosine`.
    """
    objective = objective or Erm()
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps) if cosine else None
    streams = {domain: batch_stream(domain, source, batch_size, seed) for domain, source in sources.items()}
    device = next(model.parameters()).device
    model.train()
    if freeze_norms:
        for module in model.modules():
            if isinstance(module, _NormBase):
                module.eval()
    for step in range(1, steps + 1):
        batches = to_device({domain: next(stream) for domain, stream in streams.items()}, device)
        loss = objective(*forward(model, batches, joint=True))
        if not torch.isfinite(loss):
            raise DapError(f"the loss is {loss.item()} at step {step} of dense training: lower the learning rate")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if decay is not None:
            decay.step()
        if on_step is not None:
            on_step(step, loss.item())
    model.eval()
