"""A small residual network for 32-pixel images, quick enough to train on a laptop's processor."""

from torch import Tensor, nn
from torch.nn import functional as F

from dap.models.classifier import Classifier, Recipe


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut: [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Features(nn.Module):
    """A stem and three stages of two blocks: images [n, 3, h, w] to [n, 4 * width] and the four maps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Halving at once makes the network four times faster, and the digits were 8 pixels wide to begin with.
        self.stem = nn.Sequential(_conv(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU())
        self.stage1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.stage2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.stage3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        stem = self.stem(images)
        stage1 = self.stage1(stem)
        stage2 = self.stage2(stage1)
        stage3 = self.stage3(stage2)
        return self.pool(stage3), (stem, stage1, stage2, stage3)


def small_resnet(classes: int = 10, width: int = 24) -> Classifier:
    """Three stages of two blocks: images [n, 3, 32, 32] to logits [n, classes].

    The stages have `width`, `2 * width` and `4 * width` channels; a width of 24 makes 0.4 million weights.

    >>> small_resnet()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    features = Features(width)
    model = Classifier.of(features, nn.Linear(4 * width, classes), (width, width, 2 * width, 4 * width))
    model.recipe = Recipe("small_resnet", classes, {"width": width})
    return model


def _conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    # No bias: the norm that follows every convolution has one.
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
