"""Every measure of sensitivity keeps its word, and the pruner works with it."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dap
from conftest import make_batches, make_model
from dap.method.gates import Granularity, by_output_channel, by_weight
from dap.method.gradients import domain_gradients
from dap.method.schedules import temperature
from dap.method.sensitivities import SENSITIVITIES, Sensitivity, SignAgreement
from dap.runtime.checkpoints import load_state, save_state
from dap.structure import find_channels
from measures import MEASURES, registered
from structure.networks import make_network

NETWORK, IMAGES = make_network("small_resnet")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registered():
        yield


def pruner_of(name: str, granularity: Granularity = by_weight, **options: Any) -> dap.Pruner:
    options = {"steps": 12, "target_sparsity": 0.7, "f_update": 2, "beta": 0.9, "alpha": 2.0} | options
    model = NETWORK if granularity.channels else make_model("convolutional")
    return dap.Pruner(model, dap.PruneConfig(sensitivity=name, **options), granularity=granularity)


def batches_of(pruner: dap.Pruner, step: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    if not pruner.granularity.channels:
        return make_batches(seed=step)
    noise = torch.randn(3, *IMAGES.shape, generator=torch.Generator().manual_seed(step))
    return {name: (IMAGES + part, torch.arange(len(IMAGES))) for name, part in zip("abc", noise, strict=True)}


def assert_same(one: dap.Pruner, other: dap.Pruner) -> None:
    first, second = one.state_dict()["tensors"], other.state_dict()["tensors"]
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("granularity", ["weights", "rows", "channels"])
@pytest.mark.parametrize("name", MEASURES)
def test_resumes_to_the_same_bits(name, granularity, tmp_path):
    gates = {"weights": by_weight, "rows": by_output_channel, "channels": find_channels(NETWORK, IMAGES)}[granularity]
    straight = pruner_of(name, gates)
    for stop in (1, 5):  # before the first update, and after the second
        while straight.steps_done < stop:
            straight.step(batches_of(straight, straight.steps_done))
        values = straight.state_dict()
        save_state(tmp_path / str(stop), values.pop("tensors"), values, "mask learning")
    while straight.steps_done < 9:
        straight.step(batches_of(straight, straight.steps_done))
    assert straight.sensitivity is not None
    assert straight.sensitivity.abs().max() > 0
    for stop in (1, 5):
        tensors, values = load_state(tmp_path / str(stop), "mask learning")
        resumed = pruner_of(name, gates)
        resumed.load_state_dict({**values, "tensors": tensors})
        while resumed.steps_done < 9:
            resumed.step(batches_of(resumed, resumed.steps_done))
        assert_same(resumed, straight)


@pytest.mark.parametrize("name", MEASURES)
def test_a_failed_step_changes_nothing(name):
    untouched, pruner = pruner_of(name), pruner_of(name)
    for step in range(3):
        untouched.step(make_batches(seed=step))
        pruner.step(make_batches(seed=step))
    # Adds 0, whose derivative is infinite: the measure sees gradients that are not finite.
    hook = pruner.masked.model.register_forward_hook(lambda _, __, outputs: outputs + (outputs.sum() * 0).sqrt())
    with pytest.raises(dap.DapError, match="the gradient is NaN or infinite at step 4"):
        pruner.step(make_batches(seed=3))
    hook.remove()
    assert_same(pruner, untouched)
    for one in (untouched, pruner):
        one.step(make_batches(seed=3))  # an update
    assert_same(pruner, untouched)


@pytest.mark.parametrize("name", MEASURES)
def test_a_damaged_memory_is_refused(name):
    pruner = pruner_of(name)
    for step in range(2):
        pruner.step(make_batches(seed=step))
    for key in [key for key in pruner.state_dict()["tensors"] if key.startswith("memory.")]:
        state = pruner.state_dict()
        state["tensors"][key] = state["tensors"][key][1:]
        with pytest.raises(dap.DapError, match=f"{key} has shape"):
            pruner_of(name).load_state_dict(state)
    state = pruner.state_dict()
    state["tensors"]["memory.nobody"] = torch.zeros(pruner.layout.gates)
    with pytest.raises(dap.DapError, match=r"unknown: 'memory\.nobody'"):
        pruner_of(name).load_state_dict(state)


def measured(measure: type[Sensitivity], gradients: torch.Tensor, memory: dict[str, torch.Tensor]) -> Sensitivity:
    names = [f"domain {index}" for index in range(len(gradients))]
    update = measure(gradients.shape[1], names, CPU, memory)
    for name, gradient in zip(names, gradients, strict=True):
        update.add(name, slice(0, gradients.shape[1]), gradient)
    return update


@pytest.mark.parametrize("domains", [2, 3, 12])
@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_lies_in_its_range(measure, domains):
    kinds = torch.tensor([0.0, 0.0, 1e-30, -1e-30, 1.0, -1.0, 3e4, -3e4])
    gradients = kinds[torch.randint(len(kinds), (domains, 500))]
    gradients[:, :4] = torch.tensor([0.0, 1.0, -1.0, 1e-30])  # all domains agree
    low, high = measure.range
    memory: dict[str, torch.Tensor] = {}
    for _ in range(3):
        score = measured(measure, gradients, memory).score(slice(0, 500))
        assert score.dtype == torch.float32
        assert score.min() >= low
        assert score.max() <= high
        assert score[1] == score[2] == low  # the least where all agree


@pytest.mark.parametrize("beta", [0.0, 0.92, 0.98, 0.99, 0.999])
@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_its_precision_follows_the_average(measure, beta):
    low, high = measure.range
    scores = torch.linspace(low, high, 101)
    average = torch.zeros(101, dtype=measure.precision(beta))
    updates = round(3 / (1 - beta))  # after which S̄ is close to S, and moves least
    for _ in range(updates):
        average = torch.lerp(average.float(), scores, 1 - beta).to(average.dtype)
    assert (average - scores * (1 - beta**updates)).abs().max() < 0.03 * (high - low)


class Passes(TorchDispatchMode):
    """Counts operations that write a tensor of `size` numbers."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        onto_itself = "copy_" in str(func) and len(args) > 1 and args[0].data_ptr() == args[1].data_ptr()
        if isinstance(found, torch.Tensor) and found.numel() == self.size and not func.is_view and not onto_itself:
            self.count += 1
        return found


@pytest.mark.parametrize("domains", [2, 3, 12])
@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_costs_what_it_says(measure, domains):
    size, names, memory = 64, [f"domain {index}" for index in range(domains)], {}
    update = measure(size, names, CPU, memory)
    with Passes(size) as passes:
        for name in names:
            update.add(name, slice(0, size), torch.randn(2, size)[0])
        update.score(slice(0, size))
    stated = measure.cost(domains)
    parts = [one for value in vars(update).values() for one in (value.values() if isinstance(value, dict) else [value])]
    kept = {tensor.data_ptr() for tensor in memory.values()}
    working = [one for one in parts if isinstance(one, torch.Tensor) and one.data_ptr() not in kept]
    assert passes.count == stated.passes
    assert sum(tensor.nbytes for tensor in working) == stated.working * size
    assert sum(tensor.nbytes for tensor in memory.values()) == stated.kept * size


@pytest.mark.parametrize("name", MEASURES)
def test_a_state_has_the_bytes_per_gate_that_are_stated(name):
    pruner = pruner_of(name)
    pruner.step(make_batches())
    pruner.step(make_batches())
    tensors = pruner.state_dict()["tensors"]
    found = sum(tensor.nbytes for key, tensor in tensors.items() if key.startswith(("sensitivity", "memory.")))
    measure = MEASURES[name]
    assert found == pruner.layout.gates * (measure.precision(0.9).itemsize + measure.cost(3).kept)


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_shapes_the_logit_or_the_gradient(measure):
    low, high = measure.range
    average = torch.linspace(low, high, 9, dtype=measure.precision(0.9))
    logit, gradient = torch.zeros(9), torch.ones(9)
    measure.shape_logit(logit, average.float(), 2.0)
    measure.shape_gradient(gradient, average, 2.0)
    assert logit.any() != bool((gradient != 1).any())
    assert torch.equal(logit, logit.sort(descending=True).values)  # disagreement pushes out,
    assert torch.equal(gradient, gradient.sort(descending=True).values)  # or makes the task count less
    measure.shape_logit(logit, -average.float(), 2.0)
    assert not logit.any()


@pytest.mark.parametrize("name", MEASURES)
def test_it_matters(name):
    ours, without = pruner_of(name), pruner_of(name, alpha=0.0)
    for step in range(6):
        ours.step(make_batches(seed=step))
        without.step(make_batches(seed=step))
    away = (ours.effective - without.effective).abs()  # the sums over domains alone differ in the last bits
    assert (away > 1e-4).float().mean() > 0.5


def test_an_unknown_measure_is_one_line_that_lists_those_there_are():
    with pytest.raises(dap.DapError, match=f"no sensitivity 'unknown'; choose one of {', '.join(SENSITIVITIES)}$"):
        pruner_of("unknown")


def test_a_state_of_earlier_versions_is_one_of_signs():
    straight, resumed = pruner_of("sign"), pruner_of("sign")
    for step in range(3):
        straight.step(make_batches(seed=step))
    state = straight.state_dict()
    del state["compared"], state["config"]["sensitivity"]
    with pytest.raises(dap.DapError, match="was made with sensitivity='sign', this pruner has 'vote'"):
        pruner_of("vote").load_state_dict(state)
    resumed.load_state_dict(state)
    for one in (straight, resumed):
        one.step(make_batches(seed=3))
    assert_same(resumed, straight)


@pytest.mark.parametrize("granularity", ["weights", "rows", "channels"])
def test_sees_the_gradients_it_asks_for(granularity):
    gates = {"weights": by_weight, "rows": by_output_channel, "channels": find_channels(NETWORK, IMAGES)}[granularity]
    seen: list[tuple[str, slice, torch.Tensor]] = []

    class Recording(SignAgreement):
        def add(self, domain: str, piece: slice, gradient: torch.Tensor) -> None:
            seen.append((domain, piece, gradient.clone()))

    class OfWeights(Recording):
        gradients = "weight"

    SENSITIVITIES.update(gate=Recording, weight=OfWeights)
    for name in ("gate", "weight"):
        seen.clear()
        pruner = pruner_of(name, gates, f_update=1)
        batches = batches_of(pruner, 0)
        tau = temperature(1, pruner.config.steps, *pruner.config.temperature)
        sampled = pruner._sample(1, tau, *pruner.layout.priced(pruner.effective))[0]
        masked = pruner.layout.masked_weights(sampled)
        _, parts = domain_gradients(pruner.network, pruner.objective, masked, batches)
        expected = {}
        for domain, part in zip(batches, parts, strict=True):
            # Against autograd: every weight of a gate moves by the same amount, or in proportion to itself.
            amount = torch.zeros(pruner.layout.gates, requires_grad=True)
            known = pruner.layout.weights
            directions = {key: known[key] if name == "gate" else torch.ones_like(known[key]) for key in known}
            scaled = {key: value * directions[key] for key, value in spread_over(pruner, amount).items()}
            products = [(scaled[key] * gradient).sum() for key, gradient in part.items() if gradient is not None]
            (expected[domain],) = torch.autograd.grad(sum(products), amount)  # pyright: ignore
        pruner.step(batches)
        for domain in batches:
            found = torch.cat([gradient for one, _, gradient in seen if one == domain])
            torch.testing.assert_close(found, expected[domain], rtol=1e-3, atol=1e-6)


def spread_over(pruner: dap.Pruner, amount: torch.Tensor) -> dict[str, torch.Tensor]:
    """The amount of its gate for every weight; none where a channel has no gate."""
    ones = {name: torch.ones_like(weight) for name, weight in pruner.layout.weights.items()}
    layout = copy.copy(pruner.layout)
    layout.weights = ones  # pyright: ignore
    still = layout.masked_weights(torch.zeros_like(amount))
    return {name: value - still[name] for name, value in layout.masked_weights(amount).items()}
