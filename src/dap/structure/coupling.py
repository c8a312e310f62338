"""Which channels belong together: the only file that knows torch-pruning, which traces a model's dependencies."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dap.errors import DapError
from dap.masks.attach import every_weight, looking_at, maskable_weights
from dap.masks.observation import Product, observe, order_of_use
from dap.runtime.outputs import Outputs
from dap.runtime.user_models import copied
from dap.structure.channels import Channels, Cost, Place
from dap.structure.flops import count_flops
from dap.structure.removal import is_attention
from dap.structure.trial import is_removable

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def find_channels(
    model: nn.Module, inputs: Tensor, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Channels:
    """The channels of `model` that can be removed, found with a few of its inputs.

    Groups that cannot be removed exactly, which is tried, stay whole: those that a layer norm or a convolution of
    several wide groups looks at, for instance, those whose weights `include` and `exclude` leave out, and the outputs
    of the last layer.
    """
    inputs = inputs.clone()  # a model may change them in place
    names = {id(module): path for path, module in model.named_modules()}
    chosen, weights = set(maskable_weights(model, include, exclude)), every_weight(model)
    head = order_of_use(model, weights, inputs)[-1]
    allowed = chosen - {head}
    attentions = [module for module in model.modules() if is_attention(module)]
    found = [*_traced(model, inputs, names, attentions, allowed), *_heads(attentions, names, allowed)]
    few = inputs[:2]
    if found and not is_removable(model, _channels(model, found), few):
        found = [one for one in found if is_removable(model, _channels(model, [one]), few)]
        if found and not is_removable(model, _channels(model, found), few):
            raise DapError("the model's channels cannot be removed together: choose an allocation of single weights")
    if not found:
        _check_repeatable(model, few)
        raise DapError("the model has no channels that can be removed: choose an allocation of single weights")
    channels = _channels(model, found)
    return replace(channels, costs=tuple(_costs(model, inputs, weights, _joined(channels.places), attentions, names)))


def _check_repeatable(model: nn.Module, inputs: Tensor) -> None:
    """Whether trials could tell anything: they compare copies of the model, on the same inputs."""
    copied(model)
    with looking_at(model):
        first, second = (Outputs.of(model(inputs.clone())).logits for _ in range(2))
    if not torch.equal(first, second):
        raise DapError("two forward passes on the same inputs differ: remove what draws random numbers in eval mode")


_Found = tuple[str, int, list[Place], list[Place]]  # a name, the number of channels, all places, those of gates


def _channels(model: nn.Module, found: Sequence[_Found]) -> Channels:
    """What was found, side by side in one flat vector, without costs."""
    groups: dict[str, slice] = {}
    places: list[Place] = []
    gates: list[Place] = []
    for name, size, mine, sites in found:
        start = max((group.stop for group in groups.values()), default=0)
        groups[name] = slice(start, start + size)
        places += [_moved(place, start) for place in mine]
        gates += [_moved(place, start) for place in sites]
    parameters = dict(model.named_parameters())
    places = [place for place in places if place.name in parameters]
    shapes = {place.name: tuple(parameters[place.name].shape) for place in places}
    return Channels(groups, tuple(places), tuple(_joined(gates)), (), shapes)


def _traced(
    model: nn.Module, inputs: Tensor, names: Mapping[int, str], attentions: list[nn.Module], allowed: set[str]
) -> Iterator[_Found]:
    try:
        import torch_pruning
    except ImportError:
        raise DapError("removing channels needs torch-pruning: pip install 'dap[deploy]'") from None
    own = {id(layer) for module in attentions for layer in (module.qkv, module.proj)}
    fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    model.requires_grad_(True)  # it follows gradients
    try:
        with looking_at(model), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # about parameters outside modules, whose groups are left out here
            graph = torch_pruning.DependencyGraph().build_dependency(model, inputs[:2].detach())
            listed = list(graph.get_all_groups())
    except DapError:
        raise
    except Exception as error:
        raise DapError(f"the model's channels cannot be traced ({type(error).__name__}: {error})") from error
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in fixed)
    for group in listed:
        items = [(item.dep.target, item.dep.handler.__name__, item.idxs, item.root_idxs) for item in group.items]
        with suppress(IndexError):  # channels that are padded, split or shuffled have no place of their own
            if (entry := _group(items, names, own, allowed)) is not None:
                yield entry


def _group(
    items: list[tuple[Any, str, list[int], list[int]]], names: Mapping[int, str], own: set[int], allowed: set[str]
) -> _Found | None:
    """One of torch-pruning's groups; None if it cannot be removed exactly."""
    size = len(items[0][2])
    places: list[Place] = []
    nodes: dict[int, Any] = {}  # layers that the channels come from, and those they pass through
    for node, handler, indices, roots in items:
        module = node.module
        if not _has_parameters(module):
            continue
        path, outwards = names.get(id(module)), handler == "prune_out_channels"
        if path is None or id(module) in own or len(set(roots)) != size:
            return None
        if isinstance(module, _CONVOLUTIONS) and module.groups > 1:
            if not module.groups == module.in_channels == module.out_channels:
                return None
            outwards = True
        elif not isinstance(module, (*_CONVOLUTIONS, nn.Linear, _BatchNorm, nn.PReLU)):
            return None
        if isinstance(module, nn.PReLU) and module.num_parameters == 1:
            continue
        rows = isinstance(module, _BatchNorm | nn.PReLU) or outwards
        if rows and isinstance(module, (*_CONVOLUTIONS, nn.Linear)) and f"{path}.weight" not in allowed:
            return None
        weight = module.weight
        channels = torch.full((weight.shape[0 if rows else 1],), -1, device="cpu")
        channels[torch.tensor(indices, device="cpu")] = torch.tensor(roots, device="cpu")
        places.append(Place(f"{path}.weight", 0 if rows else 1, channels))
        if rows:
            nodes[id(node)] = node
            if getattr(module, "bias", None) is not None:
                places.append(Place(f"{path}.bias", 0, channels))
    sites = {names[id(node.module)] for node in nodes.values() if _is_last(node, nodes)}
    gates = [place for place in places if place.dim == 0 and place.name.rpartition(".")[0] in sites]
    if not gates:
        return None
    return places[0].name, size, places, gates


def _has_parameters(module: Any) -> bool:
    return not isinstance(module, nn.Module) or any(True for _ in module.parameters(recurse=False))


def _is_last(node: Any, nodes: Mapping[int, Any]) -> bool:
    """Whether the channels leave this layer for one that takes them in, before another of the group scales them."""
    if isinstance(node.module, nn.PReLU):
        return False
    ahead, seen = [(node, after) for after in node.outputs], {id(node)}
    if not ahead:
        return True
    while ahead:
        before, here = ahead.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        passes = id(here) in nodes and (isinstance(here.module, _BatchNorm) or _is_depthwise(here.module))
        if passes or _scales(before, here, node, nodes):
            continue
        if isinstance(here.module, (*_CONVOLUTIONS, nn.Linear)) or not here.outputs:
            return True
        ahead += [(here, after) for after in here.outputs]
    return False


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, _CONVOLUTIONS) and module.groups > 1


def _scales(before: Any, here: Any, node: Any, nodes: Mapping[int, Any]) -> bool:
    """Whether `here` multiplies the normalised channels by ours: squeeze and excitation, which needs no gate."""
    if isinstance(node.module, _BatchNorm) or "Mul" not in type(here.grad_fn).__name__:
        return False
    behind, seen = [other for other in here.inputs if other is not before], set()
    while behind:
        other = behind.pop()
        if id(other) in seen:
            continue
        seen.add(id(other))
        if id(other) in nodes:
            if isinstance(other.module, _BatchNorm):
                return True
            continue
        behind += other.inputs
    return False


def _heads(attentions: list[nn.Module], names: Mapping[int, str], allowed: set[str]) -> Iterator[_Found]:
    """Heads as channels: queries, keys and values of a head, and the columns that take its output."""
    for module in attentions:
        path, heads, width = names[id(module)], int(module.num_heads), int(module.head_dim)  # pyright: ignore
        if f"{path}.qkv.weight" not in allowed or heads < 2:
            continue
        of_head = torch.arange(heads, device="cpu").repeat_interleave(width)
        rows, values = of_head.repeat(3), torch.cat([torch.full((2 * heads * width,), -1, device="cpu"), of_head])
        places = [Place(f"{path}.proj.weight", 1, of_head)]
        places += [Place(f"{path}.qkv.{name}", 0, rows) for name in ("weight", "bias")]
        gates = [Place(f"{path}.qkv.{name}", 0, values) for name in ("weight", "bias")]
        if module.qkv.bias is None:  # pyright: ignore
            gates.pop()
        yield f"{path}.qkv.weight", heads, places, gates


def _moved(place: Place, start: int) -> Place:
    return place._replace(channels=torch.where(place.channels < 0, place.channels, place.channels + start))


def _joined(places: Sequence[Place]) -> list[Place]:
    """One place for each side of a parameter, whatever groups meet there."""
    joined: dict[tuple[str, int], Tensor] = {}
    for name, dim, channels in places:
        before = joined.get((name, dim))
        joined[name, dim] = channels if before is None else torch.where(channels < 0, before, channels)
    return [Place(name, dim, channels) for (name, dim), channels in joined.items()]


def _costs(
    model: nn.Module,
    inputs: Tensor,
    weights: Mapping[str, Tensor],
    places: Sequence[Place],
    attentions: list[nn.Module],
    names: Mapping[int, str],
) -> list[Cost]:
    sides: dict[str, list[Tensor]] = {name: [] for name in weights}
    for name, _, channels in places:
        if name in sides:
            sides[name].append(channels)
    used: dict[str, int] = dict.fromkeys(weights, 0)
    pairs: dict[int, int] = {}  # of tokens that attentions compare: those of a window, or of a whole image

    def count(product: Product) -> None:
        weight = weights[product.name]
        positions = product.output.numel() // product.output.shape[1 if product.convolution else -1]
        used[product.name] += positions * weight[product.rows].numel() // len(inputs)

    def compare(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        sequences, length, _ = given[0].shape
        pairs[id(module)] = sequences * length**2 // len(inputs)

    hooks = [module.register_forward_pre_hook(compare) for module in attentions]
    try:
        with looking_at(model), observe({name: weight.detach() for name, weight in weights.items()}, count):
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    costs = [Cost(multiplications, tuple(sides[name])) for name, multiplications in used.items() if multiplications]
    for module in attentions:
        name = f"{names[id(module)]}.qkv.weight"
        if id(module) in pairs:
            width = int(module.num_heads) * int(module.head_dim)  # pyright: ignore
            rows = [channels[:width] for place, dim, channels in places if place == name and dim == 0]
            costs.append(Cost(2 * pairs[id(module)] * width, tuple(rows)))
    # Products of activations, in attentions of other kinds: they stay.
    rest = count_flops(model, inputs) // 2 // len(inputs) - sum(cost.multiplications for cost in costs)
    return costs + [Cost(rest, ())] * (rest > 0)
