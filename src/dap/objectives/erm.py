"""Empirical risk minimisation."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dap.outputs import Outputs


class Erm:
    """The mean over domains of the cross-entropy."""

    def __call__(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor:
        risks = [F.cross_entropy(outputs[domain].logits.float(), labels[domain]) for domain in outputs]
        return torch.stack(risks).mean()
