"""Networks of every kind whose channels can be removed, with statistics and affine parameters that are not trivial."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dap.models import create_classifier

# backbone → side of its images
BACKBONES = {
    "small_resnet": 16,
    "resnet18": 32,
    "resnet26": 32,  # bottlenecks
    "mobilenetv2_035": 32,  # depthwise
    "mobilenetv3_small_050": 32,  # depthwise, squeeze and excitation
    "vit_tiny_patch16_224": 32,
}


def make_network(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A classifier in eval mode, and images for it."""
    torch.manual_seed(0)
    side = BACKBONES[name]
    images = torch.randn(4, 3, side, side)
    model = create_classifier(name, 5, pixels=side if "vit" in name else None)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = None
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
        model.train()(images)
    return model.eval(), images
