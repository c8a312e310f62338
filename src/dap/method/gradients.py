"""The task's loss and its gradient, whole or divided by domain.

Every objective is a function of the domains' outputs, so its gradient divides there: each domain's share of the
gradient at the outputs goes back through that domain's own graph. The shares add up to the ordinary gradient, so
domain sensitivity costs no extra pass, whatever the objective. It divides among processes in the same place: each sends
its own images' share back, and the sum over processes is the gradient of the loss on the whole batch.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from dap.errors import DapError
from dap.objectives.objective import Gradient, Gradients, Objective, Weights
from dap.runtime.batches import Batches, check_batch, check_labels
from dap.runtime.convolutions import fast_backward
from dap.runtime.outputs import Outputs
from dap.runtime.ranks import ALONE, Ranks

Network = Callable[[Weights, Tensor], object]  # weights by name, inputs → outputs

# Up to this many input numbers the domains share one forward pass on a CPU, since one domain alone does not fill it.
# Above, separate passes are as fast or faster: their smaller activations stay on the heap from step to step.
_JOINT = 2**20


def task_gradient(
    network: Network,
    objective: Objective,
    weights: Weights,
    batches: Batches,
    ranks: Ranks = ALONE,
    joint: bool | None = None,
) -> Gradient:
    """The loss, and its gradient with respect to `weights` (none: the model is constant) and what the objective learns.

    Each rank brings its part of every domain's batch; loss and gradient are those of the whole batch, on every rank.
    All domains are in one `joint` pass, or have one each; None: whichever is faster, for a model that treats images one
    by one.
    """
    if joint is None:
        joint = _fill_one_pass(batches)
    with torch.enable_grad():
        leaves = _leaves(weights)
        with torch.set_grad_enabled(bool(leaves)):
            outputs, labels = forward(partial(network, leaves), objective, batches, joint=joint)
        if leaves:
            _check_graph(outputs)
        loss = loss_from(objective, outputs, labels, ranks)
        if leaves:
            _check_depends(loss)
    learned = objective.learned() if objective.step is not None else {}
    gradients = _gradients([loss], None, {**leaves, **{f"learned {name}": value for name, value in learned.items()}})
    ours = {name: gradients[name] for name in leaves}
    theirs = {name: gradients[f"learned {name}"] for name in learned}
    # Through our own images alone, if every rank saw all outputs: what is missing are the others' parts. What the
    # objective learns saw everything.
    _add_up(ours, leaves, ranks, mean=objective.separable)
    _add_up(theirs, learned, ranks, mean=True)
    return Gradient(_value(loss, ranks), ours, theirs)


def domain_gradients(
    network: Network, objective: Objective, weights: Weights, batches: Batches, ranks: Ranks = ALONE
) -> tuple[float, Iterator[Gradients]]:
    """The loss, and for each domain the part of its gradient that flows through that domain's images (eq. 5)."""
    with torch.enable_grad():
        leaves = _leaves(weights)
        outputs, labels = forward(partial(network, leaves), objective, batches, joint=False)
        _check_graph(outputs)
        cut = {
            domain: output.replaced([tensor.detach().requires_grad_() for tensor in output.tensors()])
            for domain, output in outputs.items()
        }
        loss = loss_from(objective, cut, labels, ranks)
        _check_depends(loss)
    value = _value(loss, ranks)
    edges = [tensor for output in cut.values() for tensor in output.tensors()]
    at_edges = dict(zip(map(id, edges), torch.autograd.grad(loss, edges, allow_unused=True), strict=True))

    def parts() -> Iterator[Gradients]:
        for domain in list(outputs):
            ends = zip(outputs.pop(domain).tensors(), cut[domain].tensors(), strict=True)  # pop: let the graph go
            used = [(end, at_edges[id(edge)]) for end, edge in ends if end.requires_grad]
            used = [(end, gradient) for end, gradient in used if gradient is not None]
            part = _gradients([end for end, _ in used], [gradient for _, gradient in used], leaves)
            _add_up(part, leaves, ranks, mean=objective.separable)
            yield part

    return value, parts()


def loss_of(network: Network, objective: Objective, weights: Weights, batches: Batches, ranks: Ranks = ALONE) -> float:
    """The loss alone."""
    with torch.no_grad():
        outputs, labels = forward(partial(network, weights), objective, batches, joint=True)
    with torch.enable_grad():  # an objective may take gradients of its own inside
        loss = loss_from(objective, outputs, labels, ranks)
    return ranks.totals(loss.item())[0] / ranks.size


def forward(
    model: Callable[[Tensor], object], objective: Objective, batches: Batches, joint: bool
) -> tuple[dict[str, Outputs], dict[str, Tensor]]:
    """The checked outputs and labels of every domain, from one `joint` pass (where shapes allow) or a pass for each."""
    for domain, (inputs, labels) in batches.items():
        check_batch(domain, inputs, labels)
    if joint and len({(inputs.shape[1:], inputs.dtype) for inputs, _ in batches.values()}) == 1:
        whole = Outputs.of(model(torch.cat([inputs for inputs, _ in batches.values()])))
        parts = whole.split([len(inputs) for inputs, _ in batches.values()])
    else:
        # Copies, as a joint pass has them: a model may change its inputs in place.
        parts = [Outputs.of(model(inputs.clone())) for inputs, _ in batches.values()]
    outputs = {
        domain: part.only(objective.needs)._replace(reference=objective.observe(inputs))
        for part, (domain, (inputs, _)) in zip(parts, batches.items(), strict=True)
    }
    labels = {domain: y if y.is_floating_point() else y.long() for domain, (_, y) in batches.items()}
    for domain, output in outputs.items():
        if not labels[domain].is_floating_point():
            check_labels(domain, labels[domain], output.logits.shape[1])
        _check_needs(objective, output)
    return outputs, labels


def loss_from(
    objective: Objective, outputs: Mapping[str, Outputs], labels: Mapping[str, Tensor], ranks: Ranks = ALONE
) -> Tensor:
    """The loss of all ranks' outputs or, if its mean over the ranks will do, of our own."""
    if ranks.size > 1 and not objective.separable:
        outputs = {domain: output.mapped(ranks.gather) for domain, output in outputs.items()}
        labels = {domain: ranks.gather(label) for domain, label in labels.items()}
    # In full precision: a loss is cheap, and distances and covariances need the digits.
    with torch.autocast(next(iter(labels.values())).device.type, enabled=False):
        loss = objective(outputs, labels)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise DapError(f"the objective gave {found}: it must give one number as a tensor, such as loss.mean()")
    return loss


def _fill_one_pass(batches: Batches) -> bool:
    inputs = [inputs for inputs, _ in batches.values()]
    return inputs[0].device.type != "cpu" or sum(x.numel() for x in inputs) <= _JOINT


def _leaves(weights: Weights) -> dict[str, Tensor]:
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def _gradients(ends: list[Tensor], at_ends: list[Tensor] | None, leaves: Mapping[str, Tensor]) -> Gradients:
    if not ends or not leaves:
        return dict.fromkeys(leaves)
    with fast_backward(leaves.values()):
        found = torch.autograd.grad(ends, list(leaves.values()), at_ends, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _add_up(gradients: Gradients, leaves: Mapping[str, Tensor], ranks: Ranks, mean: bool) -> None:
    """The sum or mean over all ranks. A model that routes its inputs may use a weight on some ranks alone."""
    if ranks.size > 1 and gradients:
        uses = ranks.totals(*(float(gradient is not None) for gradient in gradients.values()))
        for (name, gradient), count in zip(list(gradients.items()), uses, strict=True):
            gradients[name] = torch.zeros_like(leaves[name]) if gradient is None and count else gradient
    (ranks.mean_ if mean else ranks.sum_)(gradient for gradient in gradients.values() if gradient is not None)


def _value(loss: Tensor, ranks: Ranks) -> float:
    value = ranks.totals(loss.item())[0] / ranks.size
    if not math.isfinite(value):
        raise DapError(f"the loss is {value}: look at the model's outputs on this batch, or use a higher precision")
    return value


def _check_graph(outputs: Mapping[str, Outputs]) -> None:
    if not any(tensor.requires_grad for output in outputs.values() for tensor in output.tensors()):
        raise DapError("no output depends on the weights: does the model run under no_grad or detach its outputs?")


def _check_depends(loss: Tensor) -> None:
    if not loss.requires_grad:
        raise DapError("the loss does not depend on the model's outputs: does the objective detach them?")


def _check_needs(objective: Objective, output: Outputs) -> None:
    missing = {"features": output.features is None, "stages": not output.stages}
    if missing.get(objective.needs):
        name = type(objective).__name__
        raise DapError(f"{name} works on the model's {objective.needs}, and it gives none: wrap it in a dap.Classifier")
