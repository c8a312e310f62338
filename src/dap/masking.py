"""How masks attach to a module: the only file that knows.

Masked weights enter through `torch.func.functional_call`: the module's own parameters are never written, its
state-dict keys stay the user's, tied weights stay tied, and `nn.MultiheadAttention`, which reads its weights without
calling a submodule, is really masked.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from dap.errors import DapError
from dap.masks import Masks
from dap.user_models import check_plain, copied, running

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def maskable_weights(
    model: nn.Module, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> dict[str, nn.Parameter]:
    """Every weight matrix or kernel of convolutions, linear layers and attention, by its name in the model.

    Biases, norms and embeddings are never masked, nor is a matrix that is also an embedding. A tied weight appears
    once, under its first name. `include` and `exclude` are shell patterns over names, such as `"layer4.*"`.
    """
    check_plain(model)
    if isinstance(include, str) or isinstance(exclude, str):
        raise DapError("include and exclude are lists of patterns, not one string")
    every, computed = every_weight(model), _computed(model)
    for pattern in (*include, *exclude):
        if not any(fnmatchcase(name, pattern) for name in (*every, *computed)):
            some = ", ".join([*every][:2])
            raise DapError(f"no maskable weight matches {pattern!r}: their names are such as {some or 'none'}")

    def is_chosen(name: str) -> bool:
        included = not include or any(fnmatchcase(name, pattern) for pattern in include)
        return included and not any(fnmatchcase(name, pattern) for pattern in exclude)

    if found := next(filter(is_chosen, computed), None):
        raise DapError(
            f"{found} is computed from other tensors (a parametrization, weight norm or pruning hook) and cannot be "
            f"masked: make it a plain parameter first, or leave it out with exclude=({found!r},)"
        )
    weights = {name: parameter for name, parameter in every.items() if is_chosen(name)}
    _check(weights, include, exclude)
    return weights


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
        self.weights = {name: w.detach() for name, w in maskable_weights(model, include, exclude).items()}

        for name, module in model.named_modules():
            if getattr(module, "track_running_stats", True) is False and isinstance(module, _BatchNorm):
                raise DapError(
                    f"{name} normalises by the statistics of each batch (track_running_stats=False), so its outputs "
                    f"depend on an image's company: use running statistics"
                )

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor, **options: Any) -> Any:
        """The outputs of the model with `weights` in place of its masked weights."""
        state = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        # Copies, since a module may write to its buffers even in eval mode.
        state |= {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with frozen(self.model), running(self.model, inputs), _without_checkpointing():
            return functional_call(self.model, {**state, **weights}, (inputs,), options)


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
