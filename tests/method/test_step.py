import copy
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import dap
from conftest import make_batches, make_model
from dap.errors import DapError
from dap.method.gates import by_output_channel
from dap.method.schedules import Observation, make_coefficient
from dap.runtime.seeding import derive_seed, uniform_noise
from step import live_bytes


def naive(model, config, batches):
    """Algorithm 1 line by line with autograd, torch's Adam and torch's clipping: no closed form, nothing in place."""
    config = config.resolved()
    model = copy.deepcopy(model).eval()
    weights = {name: w for name, w in model.named_parameters() if w.ndim > 1}
    total = sum(w.numel() for w in weights.values())
    start = torch.logit(torch.tensor(config.p_init, dtype=torch.float64)).float()
    logits = torch.full((total,), start.item(), requires_grad=True)
    sensitivity, average = torch.zeros(total), logits.detach().clone()
    adam = torch.optim.Adam([logits], lr=config.learning_rate, eps=config.adam_eps)
    coefficient = make_coefficient(config)

    def split(flat):
        parts = flat.split([w.numel() for w in weights.values()])
        return {name: part.view(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}

    for step, batch in enumerate(batches, 1):
        tau = config.temperature[0] * (config.temperature[1] / config.temperature[0]) ** (step / config.steps)
        effective = logits - config.alpha * sensitivity
        uniform = uniform_noise(derive_seed("gates", config.seed, step), torch.device("cpu"))(torch.empty(total))
        gates = torch.sigmoid((effective + torch.log(uniform / (1 - uniform))) / tau)
        if config.hard:
            gates = (gates > 0.5).float() + gates - gates.detach()
        masked = {name: weights[name].detach() * gate for name, gate in split(gates).items()}
        for weight in masked.values():
            weight.retain_grad()
        risks = [F.cross_entropy(functional_call(model, masked, (x,)), y) for x, y in batch.values()]
        task = torch.stack(risks).mean()
        (task_gradient,) = torch.autograd.grad(task, logits, retain_graph=True)
        density = torch.sigmoid(effective).mean()
        keep = torch.sigmoid(effective.detach())
        seen = Observation(
            step,
            task.item(),
            1 - density.item(),
            task_gradient.abs().mean().item(),
            (keep * (1 - keep)).mean().item() / total,
        )
        sparsity_loss = (density - (1 - coefficient.target(step))) ** 2
        if config.alpha and step >= config.f_start and step % config.f_update == 0:
            by_domain = [torch.autograd.grad(risk, list(masked.values()), retain_graph=True) for risk in risks]
            signs = [torch.cat([g.sign().flatten() for g in gradients]) for gradients in by_domain]
            count = len(signs)
            score = -2 / (count * (count - 1)) * sum(a * b for a, b in combinations(signs, 2))
        else:
            score = None
        adam.zero_grad()
        (task + coefficient(seen) * sparsity_loss).backward()
        torch.nn.utils.clip_grad_value_([logits], config.clip_value)
        torch.nn.utils.clip_grad_norm_([logits], config.clip_norm)
        adam.step()
        if score is not None:
            sensitivity = config.beta * sensitivity + (1 - config.beta) * score
        average = config.average * average + (1 - config.average) * (logits.detach() - config.alpha * sensitivity)
    return logits.detach() - config.alpha * sensitivity, average, sensitivity


@pytest.mark.parametrize(
    "options",
    [
        {"coefficient": "paced"},
        {"coefficient": "paper", "learning_rate": 0.1, "steps": 12, "f_update": 2},
        {"coefficient": "paced", "alpha": 0.0},
        {"coefficient": "paced", "alpha": 2.0, "f_start": 5, "f_update": 3},
        {"coefficient": "paced", "hard": True},
        {"coefficient": "paced", "clip_norm": 1e-3, "clip_value": 1e-4},
    ],
)
def test_equals_the_naive_algorithm(options):
    config = dap.PruneConfig(**{"steps": 12, "target_sparsity": 0.9, "f_update": 2, **options})
    model, batches = make_model("convolutional"), [make_batches(seed=step) for step in range(8)]
    expected, average, sensitivity = naive(model, config, batches)
    pruner = dap.Pruner(model, config)
    for batch in batches:
        pruner.step(batch)
    # Adam takes the sign of a gradient in the first steps: where that is all but zero, rounding may turn it around.
    close = torch.isclose(pruner.ranking(raw=True), expected, rtol=0, atol=2e-3)
    assert close.float().mean() > 0.995
    if pruner.average is not None:
        assert torch.isclose(pruner.average, average, rtol=0, atol=2e-3).float().mean() > 0.995
    if pruner.sensitivity is not None:
        assert sensitivity.abs().max() > 0
        assert torch.isclose(pruner.sensitivity.float(), sensitivity, atol=1e-3).float().mean() > 0.99


@pytest.mark.parametrize(("eps", "all_move"), [(dap.PruneConfig().adam_eps, True), (1e-8, False)])
def test_no_logit_is_frozen_by_adams_epsilon(eps, all_move):
    torch.manual_seed(0)
    model = torch.nn.Linear(4_000, 2_600)  # N = 10.4 million
    config = dap.PruneConfig(coefficient="paper", alpha=0.0, adam_eps=eps)
    pruner = dap.Pruner(model, config)
    start = pruner.logits.clone()
    pruner.step({"here": (torch.randn(4, 4_000), torch.randint(2_600, (4,)))})
    assert pruner.layout.total >= 10**7
    gradient = pruner.optimiser.state[pruner.effective]["exp_avg"] / (1 - config.adam_betas[0])
    moved = (pruner.logits - start).abs()[gradient.abs() >= 1e-10]
    assert len(moved) > 0.99 * len(start)
    assert bool((moved >= 0.9 * pruner.config.learning_rate).all()) == all_move


def test_sensitivity_steps():
    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=20, f_start=5, f_update=3))
    changed = []
    for step in range(1, 13):
        before = pruner.sensitivity.clone()  # pyright: ignore
        pruner.step(make_batches(seed=step))
        if not torch.equal(before, pruner.sensitivity):  # pyright: ignore
            changed.append(step)
    assert changed == [6, 9, 12]


# Smaller increments would round to nothing in half precision.
@pytest.mark.parametrize(("beta", "away"), [(0.92, 0.005), (0.98, 0.02), (0.995, 1e-5), (0.9999, 1e-5)])
def test_sensitivity_moves_by_the_smallest_increments(beta, away):
    model = torch.nn.Linear(4, 2, bias=False)
    pruner = dap.Pruner(model, dap.PruneConfig(steps=300, alpha=1.0, beta=beta, f_update=1, average=0.0))
    batch = (torch.randn(4, 4), torch.randint(2, (4,)))
    for _ in range(300):
        pruner.step({"a": batch, "b": batch})  # two domains that always agree
    assert pruner.sensitivity is not None
    assert (pruner.sensitivity + 1 - beta**300).abs().max() < away
    torch.testing.assert_close(pruner.logits - pruner.sensitivity.float(), pruner.effective)  # λ̃ = λ − α·S̄, α = 1


def test_no_domain_at_all():
    with pytest.raises(DapError, match="there are no source domains"):
        dap.Pruner(make_model("tied"), dap.PruneConfig(steps=5, alpha=0)).step({})


def test_one_domain_needs_alpha_zero():
    one = make_batches(domains=1)
    with pytest.raises(DapError, match="only 1.*alpha=0"):
        dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=5)).step(one)
    assert dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=5, alpha=0)).step(one).step == 1


# Logits move by a learning rate a step: in few steps they fall behind where the path is steep, and catch up later.
@pytest.mark.parametrize(("steps", "behind"), [(60, 0.1), (300, 0.05)])
def test_paced_follows_its_path(steps, behind):
    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=steps, target_sparsity=0.9))
    stats = [pruner.step(make_batches(seed=step % 7)) for step in range(steps)]
    late = [abs(s.expected_sparsity - s.target) for s in stats[steps // 5 :]]
    assert sum(late) / len(late) < behind
    assert stats[-1].sparsity == pytest.approx(0.9, abs=0.05)
    assert pruner.finished


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_paced_does_not_depend_on_the_scale_of_the_loss(scale):
    class Scaled(dap.objectives.Erm):
        def __call__(self, outputs, labels):
            return scale * super().__call__(outputs, labels)

    model = make_model("convolutional")
    config = dap.PruneConfig(steps=60, target_sparsity=0.9, clip_norm=1e9, clip_value=1e9)
    plain, scaled = dap.Pruner(model, config), dap.Pruner(model, config, Scaled())
    for step in range(60):
        a, b = plain.step(make_batches(seed=step % 7)), scaled.step(make_batches(seed=step % 7))
        assert b.expected_sparsity == pytest.approx(a.expected_sparsity, abs=0.02)


def test_stop_at_ends_a_loop_of_ones_own():
    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=60, target_sparsity=0.9, stop_at=0.4))
    while not pruner.finished:
        stats = pruner.step(make_batches(seed=pruner.steps_done))
    assert stats.sparsity >= 0.4
    assert pruner.steps_done < 60
    resumed = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=60, target_sparsity=0.9, stop_at=0.4))
    resumed.load_state_dict(pruner.state_dict())
    assert resumed.finished


def test_memory_does_not_grow_under_one_long_autocast():
    pruner = dap.Pruner(torch.nn.Linear(500, 200), dap.PruneConfig(steps=50))
    batches = {name: (torch.randn(4, 500), torch.randint(200, (4,))) for name in "ab"}
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            pruner.step(batches)
        before = live_bytes()
        for _ in range(10):
            pruner.step(batches)
        assert live_bytes() <= before


def test_a_learned_objective_gathers_no_gradients():
    class Weighted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, outputs, labels):
            return self.weight * dap.objectives.Erm()(outputs, labels)

    objective = Weighted()
    pruner = dap.Pruner(make_model("tied"), dap.PruneConfig(steps=5, f_update=2), objective)
    for step in range(4):
        pruner.step(make_batches(seed=step))
    assert objective.weight.grad is None


def test_masks_and_their_sparsity():
    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=30, target_sparsity=0.9))
    for step in range(30):
        stats = pruner.step(make_batches(seed=step))
    assert pruner.masks().sparsity == pytest.approx(stats.sparsity)
    assert pruner.masks(raw=True).sparsity == pytest.approx(stats.raw_sparsity)
    flat = torch.cat([mask.flatten() for mask in pruner.masks(raw=True).values()])
    assert torch.equal(flat, pruner.ranking(raw=True) > 0)
    # a sparser mask is part of a less sparse one: both are cut from one ranking
    dense, sparse = pruner.masks(0.3), pruner.masks(0.7)
    assert all((dense[name] | ~sparse[name]).all() for name in dense)
    with pytest.raises(DapError, match="sparsity is 1.5"):
        pruner.masks(sparsity=1.5)


def test_ties_are_cut_exactly():
    pruner = dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=5))  # all logits equal
    for sparsity in (0.1, 1 / 3, 0.5, 0.999):
        assert pruner.masks(sparsity, allow_empty=True).kept == pruner.layout.total - round(
            sparsity * pruner.layout.total
        )
    assert pruner.masks(0.5) == pruner.masks(0.5)


def test_sampled_masks_follow_the_learned_distribution():
    pruner = dap.Pruner(torch.nn.Linear(300, 300), dap.PruneConfig(steps=5, alpha=0, p_init=0.8))
    masks = pruner.sampled_masks(seed=1)
    assert masks.sparsity == pytest.approx(0.2, abs=0.01)
    assert masks == pruner.sampled_masks(seed=1)
    assert masks != pruner.sampled_masks(seed=2)


@pytest.mark.parametrize(
    "options",
    [
        {"coefficient": "paper"},
        {"coefficient": "paced", "average": 0.9},
        {"average": 0.0},
        {"alpha": 0.0},
        {"hard": True},
        {"include": ["head.*", "encoder.*"]},
    ],
)
def test_resume_gives_the_same_bits(options):
    config = dap.PruneConfig(**{"steps": 12, "f_update": 2, "learning_rate": 0.1, **options})
    whole = dap.Pruner(make_model("attention"), config)
    for step in range(5):
        whole.step(make_batches(seed=step))
    state = whole.state_dict()
    resumed = dap.Pruner(make_model("attention"), config)
    resumed.load_state_dict(state)
    for step in range(5, 12):
        assert whole.step(make_batches(seed=step)) == resumed.step(make_batches(seed=step))
    mine, theirs = whole.state_dict()["tensors"], resumed.state_dict()["tensors"]
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert whole.masks() == resumed.masks()


def test_resume_before_the_first_step():
    pruner = dap.Pruner(make_model("tied"), dap.PruneConfig(steps=4))
    pruner.load_state_dict(pruner.state_dict())
    assert pruner.step(make_batches()).step == 1


def test_a_state_of_another_model_or_configuration_is_refused():
    state = dap.Pruner(make_model("tied"), dap.PruneConfig(steps=4)).state_dict()
    with pytest.raises(DapError, match="alpha=5.0, this pruner has 2.0"):
        dap.Pruner(make_model("tied"), dap.PruneConfig(steps=4, alpha=2.0)).load_state_dict(state)
    with pytest.raises(DapError, match="gates, not .*: another granularity"):
        dap.Pruner(make_model("tied"), dap.PruneConfig(steps=4), granularity=by_output_channel).load_state_dict(state)
    with pytest.raises(DapError, match="does not fit the model: 0.weight"):
        dap.Pruner(make_model("convolutional"), dap.PruneConfig(steps=4)).load_state_dict(state)


def test_state_of_18_bytes_per_weight():
    pruner = dap.Pruner(torch.nn.Linear(1000, 100), dap.PruneConfig(steps=5, alpha=1.0))
    pruner.step({name: (torch.randn(4, 1000), torch.randint(100, (4,))) for name in "ab"})
    state = pruner.state_dict()["tensors"].values()
    assert sum(t.numel() * t.element_size() for t in state) <= 18.5 * pruner.layout.total


class _Infinite(torch.autograd.Function):
    """The identity, whose gradient is infinite in one place."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient[0, 0] = float("inf")
        return gradient


@pytest.mark.parametrize("coefficient", ["paper", "paced"])
def test_an_infinite_gradient_is_an_error_that_leaves_the_pruner_unchanged(coefficient):
    class Model(torch.nn.Linear):
        infinite = False

        def forward(self, inputs):
            return _Infinite.apply(super().forward(inputs)) if self.infinite else super().forward(inputs)

    model = Model(4, 3)
    pruner = dap.Pruner(model, dap.PruneConfig(steps=9, alpha=0, coefficient=coefficient))
    batches = {"here": (torch.rand(6, 4), torch.randint(3, (6,)))}
    pruner.step(batches)
    before = pruner.state_dict()
    model.infinite = True
    with pytest.raises(dap.DapError, match="the gradient is NaN or infinite at step 2"):
        pruner.step(batches)
    after = pruner.state_dict()
    assert all(torch.equal(tensor, after["tensors"][name]) for name, tensor in before.pop("tensors").items())
    assert all(after[name] == value for name, value in before.items())
    model.infinite = False
    assert pruner.step(batches).step == 2
