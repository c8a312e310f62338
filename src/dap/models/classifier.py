"""A network that gives logits and, when asked, the features behind them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from dap.errors import DapError
from dap.runtime.outputs import Outputs

# From a network and images to pooled features [n, d] and the maps of its stages. A function instead of hooks, which
# would break under torch.compile and gather copies of what they saw.
Encoder = Callable[[nn.Module, Tensor], tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Recipe:
    """What rebuilds a network: `create_classifier(name, classes, **options)`."""

    name: str
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)


class Classifier(nn.Module):
    """Images to logits; with `full=True` to logits, pooled features and stage features.

    The state-dict keys are the network's own after the prefix `network.`.

    >>> model = Classifier.of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(8, 2))
    >>> model(torch.zeros(4, 3, 8, 8)).shape, model(torch.zeros(4, 3, 8, 8), full=True).features.shape
    (torch.Size([4, 2]), torch.Size([4, 8]))
    """

    gives_features = True  # when called with full=True

    def __init__(
        self,
        network: nn.Module,
        head: str,
        encoder: Encoder,
        stage_channels: tuple[int, ...] = (),
        recipe: Recipe | None = None,
    ):
        """`network` maps images to logits, `head` is the name of its last linear layer."""
        super().__init__()
        self.network = network
        self.head_name = head
        self.recipe = recipe
        self._encoder = encoder
        self._stage_channels = stage_channels

    @classmethod
    def of(cls, features: nn.Module, head: nn.Linear, stage_channels: tuple[int, ...] = ()) -> "Classifier":
        """A classifier from your own parts.

        `features` maps images to pooled features [n, d], or to a pair of them and a tuple of stage maps [n, c, h, w],
        whose channels c are then `stage_channels`.
        """
        if not isinstance(head, nn.Linear):
            raise DapError(f"the head is a {type(head).__name__}: a classifier needs an nn.Linear")
        return cls(_Parts(features, head), "head", _encode_parts, stage_channels)

    @property
    def head(self) -> nn.Linear:
        head = self.network.get_submodule(self.head_name)
        assert isinstance(head, nn.Linear)
        return head

    @property
    def name(self) -> str:
        return self.recipe.name if self.recipe else "the network of this classifier"

    @property
    def classes(self) -> int:
        return self.head.out_features

    @property
    def feature_size(self) -> int:
        """d, the length of an image's pooled features."""
        return self.head.in_features

    @property
    def stage_channels(self) -> tuple[int, ...]:
        """The channels of each stage's map; an error if the network exposes no stages."""
        if not self._stage_channels:
            raise DapError(
                f"{self.name} exposes no stages: choose a backbone that does, such as resnet50, or expose those of "
                f"your own with Classifier.of(features, head, stage_channels=…)"
            )
        return self._stage_channels

    def forward(self, images: Tensor, full: bool = False) -> Tensor | Outputs:
        if not full:
            return self.network(images)
        features, stages = self._encoder(self.network, images)
        return Outputs(self.head(features), features, stages)


class _Parts(nn.Module):
    """Features, then a linear head."""

    def __init__(self, features: nn.Module, head: nn.Linear):
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(_encode_parts(self, images)[0])


def _encode_parts(network: nn.Module, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    encoded = network.get_submodule("features")(images)
    if isinstance(encoded, Tensor):
        return encoded, ()
    pooled, stages = encoded
    return pooled, tuple(stages)
