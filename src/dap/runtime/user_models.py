"""What a user's model must be to be run, masked, trained and copied: everything else is refused here, by its cause."""

import copy
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn

from dap.errors import DapError

_QUANTISED = {"quantized", "qat", "observer", "fake_quantize"}  # parts of torch.ao, by the names of their files


def check_runnable(model: object) -> None:
    """Refuse what is not a module, or has no values."""
    if not isinstance(model, nn.Module):
        raise DapError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise DapError(
                f"{name} is on the meta device and has no values: load weights with "
                f"model.load_state_dict(state, assign=True), or build the model on a real device"
            )


def check_exportable(model: object) -> None:
    """Refuse, too, a model whose layers are no longer float modules of Python."""
    check_runnable(model)
    assert isinstance(model, nn.Module)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise DapError(f"{_named(path)} is a ScriptModule: give the torch.nn.Module that it was made from")
        if _is_sharded(module):
            raise DapError(f"{_named(path)} is sharded (FSDP): give the model before it is sharded")
        if _is_quantised(module):
            raise DapError(
                f"{_named(path)} is quantised, or prepared for it ({type(module).__name__}): give the float model, and "
                f"quantise after pruning and export (dap.export.quantise_onnx)"
            )


def check_plain(model: object) -> None:
    """Refuse, too, a model whose weights cannot be exchanged or trained."""
    check_exportable(model)
    assert isinstance(model, nn.Module)
    for path, module in model.named_modules():
        if unwrapped(module) is not module:
            raise DapError(
                f"{_named(path)} is wrapped in {type(module).__name__}: give the module inside, model.module; "
                f"dap.launch runs on several devices"
            )
        if _is_exported(module):
            raise DapError(
                f"{_named(path)} is a graph of operations, as torch.export makes it, without layers: give the "
                f"torch.nn.Module that it was made from"
            )
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            continue  # has no values yet
        if parameter.is_inference() and not torch.is_inference_mode_enabled():
            raise DapError(
                f"{name} was made in torch.inference_mode and takes part in no gradient: give copy.deepcopy(model), "
                f"made outside of it"
            )
        if type(parameter.data) is not Tensor:
            raise DapError(f"{name} is a {type(parameter.data).__name__}: give a model with ordinary tensors")


def check_shaped(weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, weight in weights:
        if nn.parameter.is_lazy(weight):
            raise DapError(f"{name} has no shape yet: run one batch through the model first")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a wrapper that runs it on several devices."""
    wrapped = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    return model.module if wrapped else model


def copied(model: nn.Module) -> nn.Module:
    """A deep copy that shares no parameter with the model."""
    try:
        made = copy.deepcopy(model)
    except Exception as error:  # whatever the model holds may refuse, each in its own way
        raise DapError(
            f"the model cannot be copied ({first_line(error)}): remove what cannot, such as locks, open files, "
            f"activations kept with their graph (keep tensor.detach()) and weights that hooks compute (make them plain "
            f"parameters), or give it a __deepcopy__"
        ) from error
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) in own for parameter in made.parameters()):
        raise DapError(f"the __deepcopy__ of {type(model).__name__} shares its parameters: let it copy them")
    return made


@contextmanager
def running(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Inside, `model` is run on `inputs`; if it fails on their dtype, the error says so."""
    try:
        yield
    except DapError:
        raise
    except (RuntimeError, TypeError) as error:
        weights = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), inputs.dtype)
        if inputs.dtype == weights or not re.search(r"\btypes?\b|dtype|not implemented for", str(error)):
            raise
        raise DapError(
            f"the model fails on inputs of {inputs.dtype}, its weights are {weights} ({first_line(error)}): "
            f"convert the inputs with inputs.to({weights})"
        ) from error


def _named(path: str) -> str:
    return path or "the model"


def first_line(error: BaseException) -> str:
    """What it says first, without the rest."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= 120 else f"{line[:117]}..."


def _is_quantised(module: nn.Module) -> bool:
    kind = type(module)
    if kind.__name__ == "FloatFunctional":  # stands in float models that can be quantised
        return False
    return kind.__module__.startswith("torch.ao.") and not _QUANTISED.isdisjoint(kind.__module__.split("."))


def _is_sharded(module: nn.Module) -> bool:
    names = {kind.__name__ for kind in type(module).__mro__}
    return not names.isdisjoint({"FullyShardedDataParallel", "FSDPModule"})


def _is_exported(module: nn.Module) -> bool:
    return isinstance(module, fx.GraphModule) and any(
        isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes
    )
