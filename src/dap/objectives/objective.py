"""What an objective is."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from dap.outputs import Outputs


class Objective(Protocol):
    """Maps the outputs and labels of each domain to one loss. It builds no network and calls no `backward`."""

    def __call__(self, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor]) -> Tensor: ...
