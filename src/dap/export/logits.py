"""Any model as one that gives logits and nothing else."""

from torch import Tensor, nn

from dap.outputs import Outputs


class Logits(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return Outputs.of(self.model(images)).logits
