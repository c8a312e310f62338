"""What flows through the layers of a model: every product with a weight, wherever in the model it is made.

Seen below autograd, at the operations themselves: a hook would miss `nn.MultiheadAttention`, whose projections are not
called as modules, and weights that a model uses through functions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dap.errors import DapError
from dap.masks.attach import looking_at
from dap.runtime.outputs import Outputs
from dap.runtime.user_models import running

_aten = torch.ops.aten
# Questions about a tensor's shape, not about its numbers.
_HARMLESS = {_aten.sym_size.int, _aten.sym_stride.int, _aten.is_same_size.default}


class Product(NamedTuple):
    """One use of a weight: `inputs` [n, in] of a linear layer or [n, in, …] of a convolution, and the output."""

    name: str
    rows: slice  # of the weight: an attention's packed projection may be used in parts
    inputs: Tensor
    output: Tensor
    convolution: dict[str, Any] | None  # stride, padding, …; None: a linear layer


class Products(TorchDispatchMode):
    """While it is entered, `seen` is called with every product of a weight, `unknown` with other uses of one."""

    def __init__(
        self, weights: Mapping[str, Tensor], seen: Callable[[Product], None], unknown: Callable[[str, Any], None]
    ):
        super().__init__()
        self.weights, self.seen, self.unknown = weights, seen, unknown
        self.names: dict[int, list[str]] = {}
        for name, weight in weights.items():
            self.names.setdefault(weight.untyped_storage().data_ptr(), []).append(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func._can_decompose():  # in inference mode layers come whole
            with self:
                return func.decompose(*args, **(kwargs or {}))
        output = func(*args, **(kwargs or {}))
        places = {
            place: name
            for place, value in enumerate(args)
            if isinstance(value, Tensor) and (name := self._name_of(value)) is not None
        }
        if places and not func.is_view and func not in _HARMLESS:
            ((place, name),) = places.items() if len(places) == 1 else [(-1, next(iter(places.values())))]
            product = self._product(func, args, output, place, name)
            if product is None:
                self.unknown(name, func)
            else:
                self.seen(product)
        return output

    def _name_of(self, value: Tensor) -> str | None:
        if value.layout is not torch.strided or value.numel() == 0:
            return None
        for name in self.names.get(value.untyped_storage().data_ptr(), ()):
            weight = self.weights[name]
            if 0 <= value.storage_offset() - weight.storage_offset() < weight.numel():
                return name
        return None

    def _product(self, func: Any, args: tuple[Any, ...], output: Tensor, place: int, name: str) -> Product | None:
        weight = self.weights[name]
        if func is _aten.convolution.default and place == 1:
            keys = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
            return Product(name, slice(0, len(weight)), args[0], output, dict(zip(keys, args[3:9], strict=True)))
        last = {_aten.addmm.default: 2, _aten.mm.default: 1, _aten.bmm.default: 1}.get(func)
        if place != last or weight.ndim != 2:
            return None
        inputs, factor = args[place - 1], args[place]
        if factor.ndim == 3 and factor.stride(0) == 0:  # one matrix for all of a batch
            inputs, factor = inputs.flatten(0, 1), factor[0]
        if factor.ndim != 2 or factor.stride() != (weight.stride(1), weight.stride(0)):
            return None  # not its transpose
        start = (factor.storage_offset() - weight.storage_offset()) // weight.stride(0)
        return Product(name, slice(start, start + factor.shape[1]), inputs, output, None)


def _refuse(name: str, operation: Any) -> None:
    raise DapError(
        f"{name} is used by {operation}, and only linear layers and convolutions can be looked into: exclude it, or "
        f"choose another method"
    )


@contextmanager
def observe(
    weights: Mapping[str, Tensor],
    seen: Callable[[Product], None],
    unknown: Callable[[str, Any], None] = _refuse,
) -> Iterator[None]:
    """Inside, without gradients, `seen` meets every product of one of the `weights`."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would do a whole layer in one operation
    try:
        device = next(iter(weights.values())).device.type
        with torch.no_grad(), torch.autocast(device, enabled=False), Products(weights, seen, unknown):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def order_of_use(model: torch.nn.Module, weights: Mapping[str, Tensor], inputs: Tensor) -> list[str]:
    """The names of the weights in the order in which a forward pass first uses them; unused ones are absent."""
    order: dict[str, None] = {}
    with (
        looking_at(model),
        running(model, inputs),
        observe(weights, lambda product: order.setdefault(product.name), lambda name, _: order.setdefault(name)),
    ):
        Outputs.of(model(inputs.clone()))
    return list(order)
