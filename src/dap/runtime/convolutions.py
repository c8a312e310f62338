"""Weight gradients of convolutions on small maps, as one matrix product.

A late layer has many weights and few positions. There PyTorch's library for CPUs, oneDNN, takes up to ten times as long
for the weights' gradient as a matrix product does: `python benchmarks/convolutions.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

_CONVOLUTION = torch.ops.aten.convolution_backward.default
_MANY = 2**17  # weights of a layer, from which on it is worth it
_FEW = 4  # positions, as a multiple of output channels, up to which a matrix product is faster


def fast_backward(weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Inside, gradients of `weights` that are of convolutions on small maps come from a matrix product, on a CPU.

    >>> layer = nn.Conv2d(256, 256, 3)
    >>> loss = layer(torch.randn(2, 256, 4, 4)).sum()
    >>> with fast_backward(layer.parameters()):
    ...     loss.backward()
    """
    # Inside the mode every operator goes through Python, which a small network would feel.
    return _SmallMaps() if any(map(_is_large, weights)) else nullcontext()


class _SmallMaps(TorchDispatchMode):
    # Below autograd, where an operator is only a kernel: double backward, hooks and autocast do not see a difference.
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is not _CONVOLUTION or not _is_small(args):
            return function(*args, **(kwargs or {}))
        gradient, inputs, weight, _, stride, padding, *_, (to_inputs, _, to_bias) = args
        # The bias's gradient, too, is ours: oneDNN makes it together with that of the weights.
        to_inputs, _, _ = function(*args[:-1], [to_inputs, False, False])
        to_weight = weight_gradient(gradient, inputs, weight, stride, padding)
        return to_inputs, to_weight, gradient.sum((0, 2, 3)) if to_bias else None


def weight_gradient(
    gradient: Tensor, inputs: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """∂L/∂W [out, in, height, width] of a convolution, from ∂L/∂outputs and its inputs."""
    out, channels, height, width = weight.shape
    images = F.pad(inputs, (padding[1], padding[1], padding[0], padding[0])).permute(0, 2, 3, 1)
    patches = images.unfold(1, height, stride[0]).unfold(2, width, stride[1])  # image, row, column, in, height, width
    patches = patches.permute(0, 1, 2, 4, 5, 3).reshape(-1, height * width * channels)
    found = gradient.permute(0, 2, 3, 1).reshape(-1, out).t() @ patches
    return found.view(out, height, width, channels).permute(0, 3, 1, 2)


def _is_large(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    return on_cpu and weight.dim() == 4 and weight.numel() >= _MANY


def _is_small(args: Sequence[Any]) -> bool:
    gradient, _, weight, _, stride, padding, dilation, transposed, _, groups, (_, to_weight, _) = args
    plain = groups == 1 and not transposed and len(stride) == len(padding) == 2 and set(dilation) == {1}
    if not (to_weight and plain and _is_large(weight)):
        return False
    return gradient.numel() // len(weight) <= _FEW * len(weight)
