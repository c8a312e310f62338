"""Every objective trains, and masks are learnt under it from its own dense model and saved state."""

from itertools import combinations

import pytest
import torch
from torch.func import functional_call
from torch.utils.data import TensorDataset

import dap
from conftest import make_batches, make_classifier, make_objective
from dap.data import digits, split
from dap.method.gates import relax
from dap.method.schedules import temperature
from dap.models import small_resnet
from dap.objectives import OBJECTIVES
from dap.runtime.outputs import Outputs, asking
from dap.runtime.seeding import derive_seed, uniform_noise

SOURCES = {name: TensorDataset(*batch) for name, batch in make_batches(size=40).items()}


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_masks_are_learnt_from_its_own_dense_model_and_saved_state(name, averaged):
    model = make_classifier()
    swad = dap.SwadConfig() if averaged else None
    config = dap.TrainConfig(steps=6, learning_rate=1e-2, batch_size=8, check_every=1, swad=swad)
    dense = dap.train(model, SOURCES, config, objective=OBJECTIVES[name](), validation=SOURCES)
    saved = dense.objective.state_dict()
    objective = OBJECTIVES[name]()
    objective.prepare(model, tuple(SOURCES), model.classes)
    objective.load_state_dict(saved)
    before = [weight.clone() for weight in model.state_dict().values()]

    config = dap.PruneConfig(steps=12, target_sparsity=0.8, f_update=2, batch_size=8)
    path = dap.learn_masks(model, SOURCES, config, objective=objective, milestones=(0.3,), validation=SOURCES)
    again = dap.learn_masks(model, SOURCES, config, objective=dense.objective)

    assert path.masks == again.masks
    assert 0.5 < path.masks.sparsity < 1
    assert 0.3 in path.snapshots
    assert path.pruner.sensitivity is not None
    assert path.pruner.sensitivity.abs().max() > 0
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    assert all(torch.equal(saved[key], value) for key, value in dense.objective.state_dict().items())


def gradient_through(domain, model, objective, weights, batches):
    """The loss of all domains, differentiated by `weights` with the outputs of all other domains detached."""
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    outputs = {}
    for each, (inputs, _) in batches.items():
        output = Outputs.of(functional_call(model, leaves, (inputs,), asking(model, objective.needs)))
        output = output.only(objective.needs)._replace(reference=objective.observe(inputs))
        outputs[each] = output if each == domain else output.mapped(torch.Tensor.detach)
    loss = objective(outputs, {each: labels for each, (_, labels) in batches.items()})
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("domains", [2, 4])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sensitivity_is_the_sign_agreement_of_the_domains_own_gradients(name, domains):
    model = make_classifier().double().eval()  # doubles: rounding changes no sign
    batches = {domain: (inputs.double(), labels) for domain, (inputs, labels) in make_batches(domains).items()}
    objective = make_objective(name, model, batches)
    config = dap.PruneConfig(steps=10, alpha=1.0, beta=0.0, f_start=0, f_update=1)  # S̄ is S after one step
    pruner = dap.Pruner(model, config, objective)
    noise = uniform_noise(derive_seed("gates", config.seed, 1), torch.device("cpu"))(torch.empty_like(pruner.effective))
    gates = relax(pruner.effective, noise, temperature(1, config.steps, *pruner.config.temperature))

    gradients = [
        gradient_through(domain, model, objective, pruner.layout.masked_weights(gates), batches) for domain in batches
    ]
    pairs = torch.stack([one.sign() * other.sign() for one, other in combinations(gradients, 2)])
    pruner.step(batches)

    assert pruner.sensitivity is not None
    torch.testing.assert_close(pruner.sensitivity.double(), -pairs.mean(0), rtol=0, atol=1e-3)  # S̄ is in half precision
    assert pairs.min() == -1
    assert pairs.max() == 1


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.needs != "logits"])
def test_what_an_objective_needs_is_said(name):
    model = make_classifier()
    objective = make_objective(name, model, SOURCES)
    pruner = dap.Pruner(model.network, dap.PruneConfig(steps=2, alpha=0.0), objective)
    with pytest.raises(dap.DapError, match="works on the model's .*, and it gives none: wrap it in a dap.Classifier"):
        pruner.step(make_batches())


_USUAL = ("erm",)  # the others take minutes together


@pytest.mark.parametrize(
    "name",
    [name if name in _USUAL else pytest.param(name, marks=pytest.mark.slow) for name in [*OBJECTIVES, "erm, averaged"]],
)
def test_every_objective_learns_the_digits(name):
    parts = {domain: split(data, index, 0) for index, (domain, data) in enumerate(digits().items())}
    del parts["rotated"]
    torch.manual_seed(0)
    # MLDG runs each domain by itself, where the statistics of a batch are not those of all domains together.
    config = dap.TrainConfig(
        steps=400 if name == "mldg" else 150,
        learning_rate=2e-3,
        schedule="cosine",
        batch_size=24,
        freeze_norms=name == "mldg",
        check_every=10 if "averaged" in name else 50,
        swad=dap.SwadConfig() if "averaged" in name else None,
    )
    dense = dap.train(
        small_resnet(width=16),
        {domain: train for domain, (train, _) in parts.items()},
        config,
        objective=OBJECTIVES[name.split(",")[0]](),
        validation={domain: held_out for domain, (_, held_out) in parts.items()},
    )
    assert dense.scores[0].mean_accuracy < 0.5
    assert dense.score is not None
    assert dense.score.mean_accuracy > 0.85
