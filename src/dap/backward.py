"""The task's loss and its gradient, whole or divided by domain.

Every objective is a function of the domains' outputs, so its gradient divides there: each domain's share of the
gradient at the outputs goes back through that domain's own graph. The shares add up to the ordinary gradient, so
domain sensitivity costs no extra pass, whatever the objective.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from dap.errors import DapError
from dap.masking import MaskedModel
from dap.objectives import Objective
from dap.outputs import Outputs

Batches = Mapping[str, tuple[Tensor, Tensor]]  # by domain: inputs, labels
Gradients = dict[str, Tensor | None]  # by weight; None: it took no part

# Up to this many input numbers the domains share one forward pass on a CPU, since one domain alone does not fill it.
# Above, separate passes are as fast or faster: their smaller activations stay on the heap from step to step.
_JOINT = 2**20


def task_gradient(
    masked: MaskedModel, objective: Objective, weights: Mapping[str, Tensor], batches: Batches
) -> tuple[float, Gradients]:
    """The loss, and its gradient with respect to `weights`."""
    with torch.enable_grad():
        leaves = _leaves(weights)
        outputs, labels = forward(partial(masked, leaves), batches, joint=_fill_one_pass(batches))
        _check_graph(outputs)
        loss = objective(outputs, labels)
    return _value(loss), _gradients([loss], None, leaves)


def domain_gradients(
    masked: MaskedModel, objective: Objective, weights: Mapping[str, Tensor], batches: Batches
) -> tuple[float, Iterator[Gradients]]:
    """The loss, and for each domain the part of its gradient that flows through that domain's images."""
    with torch.enable_grad():
        leaves = _leaves(weights)
        outputs, labels = forward(partial(masked, leaves), batches, joint=False)
        _check_graph(outputs)
        cut = {
            domain: output.replaced([tensor.detach().requires_grad_() for tensor in output.tensors()])
            for domain, output in outputs.items()
        }
        loss = objective(cut, labels)
    value = _value(loss)
    edges = [tensor for output in cut.values() for tensor in output.tensors()]
    at_edges = dict(zip(map(id, edges), torch.autograd.grad(loss, edges, allow_unused=True), strict=True))

    def parts() -> Iterator[Gradients]:
        for domain in list(outputs):
            ends = zip(outputs.pop(domain).tensors(), cut[domain].tensors(), strict=True)  # pop: let the graph go
            used = [(end, at_edges[id(edge)]) for end, edge in ends if end.requires_grad]
            used = [(end, gradient) for end, gradient in used if gradient is not None]
            yield _gradients([end for end, _ in used], [gradient for _, gradient in used], leaves)

    return value, parts()


def forward(
    model: Callable[[Tensor], object], batches: Batches, joint: bool
) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
    """The checked outputs and labels of every domain, from one `joint` pass (where shapes allow) or a pass for each."""
    for domain, (inputs, labels) in batches.items():
        _check_batch(domain, inputs, labels)
    if joint and len({(inputs.shape[1:], inputs.dtype) for inputs, _ in batches.values()}) == 1:
        whole = Outputs.of(model(torch.cat([inputs for inputs, _ in batches.values()])))
        parts = whole.split([len(inputs) for inputs, _ in batches.values()])
    else:
        parts = [Outputs.of(model(inputs)) for inputs, _ in batches.values()]
    outputs = dict(zip(batches, parts, strict=True))
    labels = {domain: labels.long() for domain, (_, labels) in batches.items()}
    for domain, output in outputs.items():
        _check_labels(domain, labels[domain], output.logits)
    return outputs, labels


def _fill_one_pass(batches: Batches) -> bool:
    inputs = [inputs for inputs, _ in batches.values()]
    return inputs[0].device.type != "cpu" or sum(x.numel() for x in inputs) <= _JOINT


def _leaves(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def _gradients(ends: list[Tensor], at_ends: list[Tensor] | None, leaves: dict[str, Tensor]) -> Gradients:
    if not ends:
        return dict.fromkeys(leaves)
    found = torch.autograd.grad(ends, list(leaves.values()), at_ends, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _value(loss: Tensor) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise DapError(f"the loss is {value}: look at the model's outputs on this batch, or use a higher precision")
    return value


def _check_graph(outputs: Mapping[str, Outputs]) -> None:
    if not any(tensor.requires_grad for output in outputs.values() for tensor in output.tensors()):
        raise DapError("no output depends on a masked weight: does the model run under no_grad or detach its outputs?")


def _check_batch(domain: str, inputs: Tensor, labels: Tensor) -> None:
    if len(inputs) == 0:
        raise DapError(f"domain {domain!r} gave an empty batch: remove the domain or give it images")
    if labels.ndim != 1 or len(labels) != len(inputs) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise DapError(
            f"domain {domain!r}: {len(inputs)} inputs need as many whole-number labels, "
            f"not {tuple(labels.shape)} of {labels.dtype}"
        )
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        raise DapError(f"domain {domain!r}: the inputs hold NaN or infinity")


def _check_labels(domain: str, labels: Tensor, logits: Tensor) -> None:
    low, high, classes = int(labels.min()), int(labels.max()), logits.shape[1]
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DapError(f"domain {domain!r}: label {wrong} is out of range, the model has {classes} classes")
