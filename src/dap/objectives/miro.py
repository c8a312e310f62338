"""Mutual information regularisation with an oracle (Cha et al., 2022): stay near the pretrained features."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.errors import DapError
from dap.objectives.objective import Objective, risks
from dap.runtime.outputs import Outputs, asking
from dap.specs.ranges import Choice

_EPS = 1e-5


class Miro(Objective):
    """Risk + λ · Σ over stages of ½ · mean((f − f₀)²/v + log v), f₀ the pretrained network's features.

    v is a learned variance per channel, softplus(b) + 1e-5.
    """

    needs = "stages"
    separable = True
    search = {"weight": Choice((1.0, 0.1, 0.01, 0.001))}
    reference: nn.Module
    spread: nn.ParameterList  # b, one per stage: [channels, 1, 1]

    def __init__(self, weight: float = 0.1, rate: float = 10.0, initial: float = 0.1):
        super().__init__()
        self.weight, self.rate, self.initial = weight, rate, initial

    @classmethod
    def defaults_for(cls, suite: str) -> dict[str, Any]:
        return {"weight": 0.01} if suite in ("PACS", "VLCS") else {}

    def prepare(self, model: nn.Module, domains: tuple[str, ...], classes: int) -> None:
        channels = getattr(model, "stage_channels", ())
        if not channels:
            raise DapError("MIRO compares the features of the model's stages: give a dap.Classifier that has some")
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        start = math.log(math.expm1(self.initial - _EPS))
        self.spread = nn.ParameterList(nn.Parameter(torch.full((count, 1, 1), start)) for count in channels)

    def learning_rate(self, base: float) -> float:
        return self.rate * base

    @torch.no_grad()
    def observe(self, inputs: Tensor) -> tuple[Tensor, ...]:
        if "reference" not in self._modules:
            raise DapError("MIRO has no reference: train with it first, or load the state saved with the dense model")
        return Outputs.of(self.reference(inputs, **asking(self.reference, self.needs))).stages

    def forward(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        distances = [self._distance(output) for output in outputs.values()]
        return risks(outputs, labels).mean() + self.weight * torch.stack(distances).mean()

    def _distance(self, output: Outputs) -> Tensor:
        stages = zip(output.stages, output.reference, self.spread, strict=True)
        return torch.stack([_stage_distance(now, before, b) for now, before, b in stages]).sum()


def _stage_distance(now: Tensor, before: Tensor, b: Tensor) -> Tensor:
    variance = F.softplus(b) + _EPS
    return ((now.float() - before.float()).square() / variance + variance.log()).mean() / 2
