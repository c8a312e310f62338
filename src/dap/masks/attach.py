"""How masks attach to a module: the only file that knows.

Masked weights stand in for the module's own during a call: its own are never written, its state-dict keys stay the
user's, tied weights stay tied, and `nn.MultiheadAttention`, which reads its weights without calling a submodule, is
really masked.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dap.errors import DapError
from dap.masks.masks import Masks
from dap.runtime.outputs import Outputs
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.user_models import check_plain, copied, running

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_LITTLE = 0.5  # a model of which a smaller share can be masked is probably not what the user thinks it is


def maskable_weights(
    model: nn.Module, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> dict[str, nn.Parameter]:
    """Every weight matrix or kernel of convolutions, linear layers and attention, by its name in the model.

    Biases, norms and embeddings are not masked by default, nor is a matrix that is also an embedding. A tied weight
    appears once, under its first name. `include` and `exclude` are shell patterns over names, such as `"layer4.*"`. A
    pattern of `include` that matches none of these weights selects among all other parameters with at least two
    dimensions: `include=("*", "lstm.weight_*")` masks a recurrent layer beside everything else.
    """
    check_plain(model)
    if isinstance(include, str) or isinstance(exclude, str):
        raise DapError("include and exclude are lists of patterns, not one string")
    every, computed, others = every_weight(model), _computed(model), _other_matrices(model)
    for pattern in (*include, *exclude):
        if not any(_matches(name, pattern) for name in (*every, *computed, *others)):
            some = ", ".join([*every, *others][:2])
            raise DapError(f"no maskable weight matches {pattern!r}: their names are such as {some or 'none'}")
    added = [pattern for pattern in include if not any(_matches(name, pattern) for name in (*every, *computed))]

    def is_chosen(name: str) -> bool:
        patterns = added if name in others else include
        included = any(_matches(name, pattern) for pattern in patterns) or not (include or name in others)
        return included and not any(_matches(name, pattern) for pattern in exclude)

    if found := next(filter(is_chosen, computed), None):
        raise DapError(
            f"{found} is computed from other tensors (a parametrization, weight norm or pruning hook) and cannot be "
            f"masked: make it a plain parameter first, or leave it out with exclude=({found!r},)"
        )
    weights = {name: parameter for name, parameter in model.named_parameters() if name in every or name in others}
    weights = {name: parameter for name, parameter in weights.items() if is_chosen(name)}
    _check(weights, include, exclude)
    if not include and not exclude:
        _warn_if_little(model, weights)
    return weights


def _matches(name: str, pattern: str) -> bool:
    """A name that holds `[` or `*` is no pattern of itself."""
    return name == pattern or fnmatchcase(name, pattern)


def _other_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters with two dimensions or more that are masked only if `include` names them."""
    every = every_weight(model)
    lazy = nn.parameter.is_lazy
    return {n: p for n, p in model.named_parameters() if n not in every and not lazy(p) and p.ndim > 1}


def _warn_if_little(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    lazy = nn.parameter.is_lazy
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if not lazy(parameter)}
    share = sum(sizes[name] for name in weights) / sum(sizes.values())
    if share < _LITTLE:
        left_out = sorted(_other_matrices(model), key=sizes.__getitem__, reverse=True)[:3]
        remedy = f": to mask one of them, name it, as in include=('*', {left_out[0]!r})" if left_out else ""
        warnings.warn(
            f"only {share:.2%} of the model's parameters can be masked, those of Conv, Linear and MultiheadAttention "
            f"layers. The largest left out are {', '.join(left_out) or 'no matrices'}{remedy}",
            stacklevel=2,
        )


def every_weight(model: nn.Module) -> dict[str, nn.Parameter]:
    """All that could be masked, sound or not."""
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)}
    candidates = {id(module._parameters.get(key)) for _, module, key in _matrices(model)}
    chosen = candidates - embeddings
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in chosen}


def _computed(model: nn.Module) -> list[str]:
    """Matrices and kernels that are no parameters themselves."""
    with frozen(model):  # a parametrization computes when it is looked at, and in training mode changes its buffers
        return [
            f"{path}.{key}" if path else key
            for path, module, key in _matrices(model)
            if module._parameters.get(key) is None and isinstance(getattr(module, key, None), Tensor)
        ]


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Where weights of layers are: a path, the layer, and their names in it."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.MultiheadAttention):
            yield from ((path, module, key) for key in _ATTENTION_WEIGHTS)
        elif isinstance(module, (*_CONVOLUTIONS, nn.Linear)):
            yield path, module, "weight"


def _check(weights: Mapping[str, Tensor], include: Sequence[str], exclude: Sequence[str]) -> None:
    if not weights:
        chosen = f" matching include={list(include)}, exclude={list(exclude)}" if include or exclude else ""
        raise DapError(
            f"the model has no maskable weights{chosen}: masks apply to the weights of Conv, Linear and "
            f"MultiheadAttention layers"
        )
    for name, weight in weights.items():
        if nn.parameter.is_lazy(weight):
            raise DapError(f"{name} has no shape yet: run one batch through the model first")
        if weight.numel() == 0:
            raise DapError(f"{name} is empty: remove that layer, or leave it out with exclude=({name!r},)")
        if not weight.is_floating_point() or weight.element_size() < 2:
            raise DapError(f"{name} is {weight.dtype}; only floating-point weights of 16 bits or more can be masked")
        if not torch.isfinite(weight).all():
            raise DapError(f"{name} holds NaN or infinity: load a sound checkpoint")
    if len({weight.device for weight in weights.values()}) > 1:
        raise DapError("the masked weights lie on several devices: put the model on one device first")


def is_transposed(module: nn.Module) -> bool:
    """A convolution whose weight has inputs for rows."""
    return isinstance(module, _TRANSPOSED)


class MaskedModel:
    """A frozen model that runs with other weights in place of its own.

    >>> model = nn.Linear(2, 2)
    >>> masked = MaskedModel(model)
    >>> masked({"weight": torch.zeros(2, 2)}, torch.ones(1, 2)).shape
    torch.Size([1, 2])
    """

    def __init__(self, model: nn.Module, include: Sequence[str] = (), exclude: Sequence[str] = ()):
        self.model = model
        self.every = {name: w.detach() for name, w in maskable_weights(model, include, exclude).items()}
        self.weights = dict(self.every)

        for name, module in model.named_modules():
            if getattr(module, "track_running_stats", True) is False and isinstance(module, _BatchNorm):
                raise DapError(
                    f"{name} normalises by the statistics of each batch (track_running_stats=False), so its outputs "
                    f"depend on an image's company: use running statistics"
                )

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor, **options: Any) -> Any:
        """The outputs of the model with `weights` in place of its masked weights."""
        # Copies, since a module may write to its buffers even in eval mode.
        state = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        state |= {name: parameter.detach() for name, parameter in self.model.named_parameters()}  # may be buffers, too
        with frozen(self.model), _without_checkpointing():
            return call_with(self.model, {**state, **weights}, inputs, **options)

    def leave_out(self, names: Collection[str]) -> None:
        """Mask all weights but these."""
        self.weights = {name: weight for name, weight in self.every.items() if name not in names}

    def unused(self, *inputs: Tensor, ranks: Ranks = ALONE) -> list[str]:
        """The masked weights that no logits of `inputs` depend on, on any rank: those of heads for training alone.

        If the logits depend on none at all, nothing is known, and the list is empty.
        """
        idle = [set(self._idle(some)) for some in inputs]
        counts = ranks.totals(*(float(all(name in found for found in idle)) for name in self.weights))
        unused = [name for name, count in zip(self.weights, counts, strict=True) if count == ranks.size]
        return unused if len(unused) < len(self.weights) else []

    def _idle(self, inputs: Tensor) -> list[str]:
        """What the graph of the logits does not reach and, since a pass may have no graph, does not change them."""
        with torch.enable_grad():
            leaves = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
            reached = _leaves_of(Outputs.of(self(leaves, inputs.clone())).logits)  # it may write to its inputs
        beyond = [name for name, leaf in leaves.items() if id(leaf) not in reached]
        if not beyond:
            return []
        return beyond if self._same(beyond, inputs[:8]) else [one for one in beyond if self._same([one], inputs[:8])]

    @torch.no_grad()
    def _same(self, names: Sequence[str], inputs: Tensor) -> bool:
        """Whether the logits stay the same with quite other weights under these names."""
        others = {name: 1 - self.weights[name] for name in names}
        logits, changed = (Outputs.of(self(weights, inputs.clone())).logits for weights in ({}, others))
        return torch.allclose(changed, logits, rtol=1e-3, atol=1e-6)


def warn_unused(unused: Sequence[str], weights: Mapping[str, Tensor]) -> None:
    """Say that `unused`, of these weights, are left out."""
    share = sum(weights[name].numel() for name in unused) / sum(weight.numel() for weight in weights.values())
    some = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
    warnings.warn(
        f"{share:.1%} of the maskable weights take no part in an evaluation pass and are left out ({some}): sparsity "
        f"is a share of the rest",
        stacklevel=3,
    )


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor, **options: Any) -> Any:
    """The outputs of `model` with `tensors`, by name, in place of its own parameters and buffers.

    A tensor replaces every tied one. Afterwards the model holds its own tensors again, the very same objects, also if
    a module is registered under several names.
    """
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    with _exchanged(model, {id(named[name]): tensor for name, tensor in tensors.items()}), running(model, inputs):
        return model(inputs, **options)


@contextmanager
def _exchanged(model: nn.Module, given: Mapping[int, Tensor]) -> Iterator[None]:
    """Inside, `model` holds what is given by the id of its own tensors."""
    # Noted before anything is exchanged: modules that are shallow copies of each other share where they hold tensors.
    places: list[dict[str, Any]] = [
        place for module in model.modules() for place in (module._parameters, module._buffers)
    ]
    own = [(place, {key: tensor for key, tensor in place.items() if id(tensor) in given}) for place in places]
    layers = [(module, module._flat_weights) for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        for place, tensors in own:
            place.update({key: given[id(tensor)] for key, tensor in tensors.items()})
        for layer, weights in layers:  # recurrent layers run on a list of their own, beside their parameters
            layer._flat_weights = [given.get(id(weight), weight) for weight in weights]
        yield
    finally:
        for place, tensors in own:
            place.update(tensors)
        for layer, weights in layers:
            layer._flat_weights = weights


def _leaves_of(end: Tensor) -> set[int]:
    """The ids of the leaves that a tensor was computed from."""
    found: set[int] = set()
    seen: set[Any] = set()
    ahead: list[Any] = [end.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        ahead += [before for before, _ in node.next_functions]
    return found


@contextmanager
def _without_checkpointing() -> Iterator[None]:
    """Gradient checkpointing runs layers again in the backward pass, when the masked weights are no longer there."""
    cause = "the model uses gradient checkpointing, or other saved-tensor hooks"
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(cause):
            yield
    except RuntimeError as error:
        if str(error) != cause:
            raise
        raise DapError(
            f"{cause}, whose second pass would run without the masks: switch it off while pruning "
            f"(set_grad_checkpointing(False) in timm, gradient_checkpointing_disable() in transformers)"
        ) from None


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own training flag afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    for module, _ in flags:
        module.training = False
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def looking_at(model: nn.Module) -> Iterator[None]:
    """As `frozen`; and buffers that the model writes to, even in eval mode, are afterwards what they were."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with frozen(model), torch.no_grad():
            yield
    finally:
        with torch.no_grad():  # a buffer may be a parameter, too
            for buffer, before in buffers:
                buffer.copy_(before)


def bake(model: nn.Module, masks: Masks) -> nn.Module:
    """A plain copy of the model with zeros in place; the model itself is not changed.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> bake(model, Masks({"weight": torch.tensor([[True, False]])})).weight[0, 1].item()
    0.0
    """
    masks.check(model)
    sparse = copied(model)
    with torch.no_grad():
        for name, mask in masks.items():
            weight = sparse.get_parameter(name)
            weight.masked_fill_(~mask.to(weight.device), 0)
    return sparse
