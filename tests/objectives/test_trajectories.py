"""Twenty steps of dense training under every objective, beside a plain transcription of its definition.

The transcriptions follow the papers and DomainBed's protocol, as loops with torch's own optimisers. They share with the
package nothing but the random draws, which are a function of seed and step.
"""

import copy
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dap.config import TrainConfig
from dap.objectives import OBJECTIVES
from dap.runtime.seeding import derive_seed
from dap.training.step import Trainer
from objectives.small import DOMAINS, Batches, draw_batches, flat_classifier, prepared, staged_classifier

STEPS, RATE, SEED = 20, 1e-2, 3
EVEN_BATCHES = [draw_batches(seed) for seed in range(STEPS)]
ODD_BATCHES = [draw_batches(seed, sizes=(4, 7, 5)) for seed in range(STEPS)]
Steps = Iterator[float]  # the loss of each step, after it was made


def features(model: nn.Module, images: Tensor) -> Tensor:
    return model.get_submodule("network.features")(images)


def head(model: nn.Module, pooled: Tensor) -> Tensor:
    return model.get_submodule("network.head")(pooled)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def run_beside(
    trainer: Trainer, batches: list[Batches], twin: nn.Module, steps: Steps, tolerance: float
) -> list[float]:
    """Train, comparing loss and weights with the twin's after every step; gives the losses."""
    start = [weight.detach().clone() for weight in twin.parameters()]
    losses = []
    for batch, expected in zip(batches, steps, strict=True):
        losses.append(trainer.step(batch).loss)
        assert losses[-1] == pytest.approx(expected, rel=10 * tolerance, abs=10 * tolerance), trainer.steps_done
        for (name, ours), theirs in zip(trainer.model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n} at {trainer.steps_done}: {m}"
            )
    assert trainer.finished
    # Twins that stand still are alike too.
    moved = [(weight - old).abs().max().item() for weight, old in zip(twin.parameters(), start, strict=True)]
    assert min(moved) > 10 * tolerance
    return losses


def follow(
    name: str, plain, batches: list[Batches], tolerance: float = 1e-6, options: dict | None = None, **config
) -> list[float]:
    """`plain(twin, batches)` makes the steps of the transcription."""
    model = flat_classifier()
    twin = copy.deepcopy(model)
    objective = prepared(name, model, **(options or {}))
    trainer = Trainer(model, objective, TrainConfig(**{"steps": STEPS, "learning_rate": RATE, "seed": SEED, **config}))
    return run_beside(trainer, batches, twin, plain(twin, batches), tolerance)


# ---- ERM


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_erm(decay, schedule):
    def plain(net: nn.Module, batches: list[Batches]) -> Steps:
        optimiser = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=decay)
        for step, batch in enumerate(batches):
            if schedule == "cosine":  # from the full rate down towards 0
                optimiser.param_groups[0]["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
            yield descend(optimiser, sum(F.cross_entropy(net(x), y) for x, y in batch.values()) / 3)

    follow("erm", plain, ODD_BATCHES, weight_decay=decay, schedule=schedule)


# ---- IRM


def test_irm():
    anneal, weight = 10, 100.0

    def half_gradient(logits: Tensor, labels: Tensor) -> Tensor:
        scale = torch.ones((), requires_grad=True)
        return torch.autograd.grad(F.cross_entropy(scale * logits, labels), scale, create_graph=True)[0]

    def plain(net: nn.Module, batches: list[Batches]) -> Steps:
        optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
        for iteration, batch in enumerate(batches):  # DomainBed's count, from 0
            risk, penalty = 0.0, 0.0
            for x, y in batch.values():
                logits = net(x)
                risk += F.cross_entropy(logits, y) / 3
                halves = [half_gradient(logits[part::2], y[part::2]) for part in (0, 1)]
                penalty += halves[0] * halves[1] / 3
            if iteration == anneal:
                optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
            yield descend(optimiser, risk + (weight if iteration >= anneal else 1.0) * penalty)

    # λ = 100 magnifies rounding.
    follow("irm", plain, ODD_BATCHES, tolerance=5e-6, options={"weight": weight, "anneal": anneal})


# ---- GroupDRO


def test_group_dro():
    eta = 0.5

    def plain(net: nn.Module, batches: list[Batches]) -> Steps:
        optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
        shares = [1 / 3] * 3
        for batch in batches:
            risks = [F.cross_entropy(net(x), y) for x, y in batch.values()]
            grown = [share * math.exp(eta * risk.item()) for share, risk in zip(shares, risks, strict=True)]
            shares = [share / sum(grown) for share in grown]
            yield descend(optimiser, sum(share * risk for share, risk in zip(shares, risks, strict=True)))

    follow("group_dro", plain, ODD_BATCHES, options={"step_size": eta})


# ---- Mixup and MLDG, which draw


def draws(step: int) -> np.random.Generator:
    return np.random.default_rng(derive_seed("objective", SEED, step))


def test_mixup():
    def plain(net: nn.Module, batches: list[Batches]) -> Steps:
        optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
        for step, batch in enumerate(batches, start=1):
            rng, loss = draws(step), 0.0
            circle = [batch[DOMAINS[place]] for place in rng.permutation(3)]
            for place in range(3):
                (x, y), (x2, y2) = circle[place], circle[(place + 1) % 3]
                both = min(len(x), len(x2))
                share = rng.beta(0.2, 0.2)
                logits = net(share * x[:both] + (1 - share) * x2[:both])
                loss += share * F.cross_entropy(logits, y[:both]) / 3
                loss += (1 - share) * F.cross_entropy(logits, y2[:both]) / 3
            yield descend(optimiser, loss)

    follow("mixup", plain, ODD_BATCHES)


@pytest.mark.parametrize(
    ("tests", "beta", "decay", "schedule"),
    [(2, 1.0, 0.0, "constant"), (1, 0.4, 0.0, "constant"), (1, 1.0, 0.3, "constant"), (2, 1.0, 0.3, "cosine")],
)
def test_mldg(tests, beta, decay, schedule):
    def plain(net: nn.Module, batches: list[Batches]) -> Steps:
        optimiser = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=decay)
        for step, batch in enumerate(batches, start=1):
            rate = RATE * 0.5 * (1 + math.cos(math.pi * (step - 1) / STEPS)) if schedule == "cosine" else RATE
            order = [batch[DOMAINS[place]] for place in draws(step).permutation(3)]
            meta_train, meta_test = order[: 3 - tests], order[3 - tests :]
            total = [torch.zeros_like(weight) for weight in net.parameters()]
            loss = 0.0
            for place, (x, y) in enumerate(meta_train):
                x2, y2 = meta_test[place % len(meta_test)]
                inner = copy.deepcopy(net)
                inner_optimiser = torch.optim.Adam(inner.parameters(), lr=rate, weight_decay=decay)
                risk = F.cross_entropy(inner(x), y)
                at_train = torch.autograd.grad(risk, list(inner.parameters()))
                for weight, gradient in zip(inner.parameters(), at_train, strict=True):
                    weight.grad = gradient.clone()
                inner_optimiser.step()
                beyond = F.cross_entropy(inner(x2), y2)
                at_test = torch.autograd.grad(beyond, list(inner.parameters()))
                for sum_, one, other in zip(total, at_train, at_test, strict=True):
                    sum_ += (one + beta * other) / 3
                loss += (risk.item() + beta * beyond.item()) / 3
            for weight, gradient in zip(net.parameters(), total, strict=True):
                weight.grad = gradient
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
            yield loss

    follow(
        "mldg",
        plain,
        EVEN_BATCHES,
        tolerance=1e-6,
        options={"weight": beta, "meta_test": tests},
        weight_decay=decay,
        schedule=schedule,
    )


# ---- CORAL and MMD, which pair domains


def paired(gap, weight: float):
    """The mean risk + weight · the mean over the three pairs of domains."""

    def plain(net: nn.Module, batches: list[Batches]) -> Steps:
        optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
        for batch in batches:
            first, second, third = (features(net, x) for x, _ in batch.values())
            labels = [y for _, y in batch.values()]
            risks = [F.cross_entropy(head(net, f), y) for f, y in zip((first, second, third), labels, strict=True)]
            gaps = gap(first, second) + gap(first, third) + gap(second, third)
            yield descend(optimiser, sum(risks) / 3 + weight * gaps / 3)

    return plain


def test_coral():
    def gap(one: Tensor, other: Tensor) -> Tensor:
        size = one.shape[1]
        means = sum((one[:, i].mean() - other[:, i].mean()) ** 2 for i in range(size)) / size
        return means + (torch.cov(one.T) - torch.cov(other.T)).pow(2).sum() / size**2

    follow("coral", paired(gap, 0.7), ODD_BATCHES, options={"weight": 0.7})


def test_mmd():
    bandwidths = torch.tensor([1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3])

    def kernel(ones: Tensor, others: Tensor) -> Tensor:
        total = torch.zeros(())
        for one in ones:
            for other in others:
                total = total + torch.exp(-bandwidths * ((one - other) ** 2).sum()).sum()
        return total / (len(ones) * len(others))

    def gap(one: Tensor, other: Tensor) -> Tensor:
        return kernel(one, one) - 2 * kernel(one, other) + kernel(other, other)

    # A kernel of bandwidth 1000 magnifies rounding in the distances.
    follow("mmd", paired(gap, 1.5), ODD_BATCHES, tolerance=5e-5, options={"weight": 1.5})


# ---- DANN and C-DANN, which have an adversary


@pytest.mark.parametrize("name", ["dann", "cdann"])
@pytest.mark.parametrize(
    ("rounds", "penalty", "decay", "rate"), [(1, 0.0, 0.0, None), (3, 0.0, 0.2, 2e-3), (1, 0.5, 0.0, None)]
)
def test_dann(name, rounds, penalty, decay, rate):
    weight = 0.6
    model = flat_classifier()
    options = {"discriminator_steps": rounds, "gradient_penalty": penalty, "discriminator_rate": rate}
    objective = prepared(name, model, weight=weight, width=12, **options)
    net = copy.deepcopy(model)
    layers = [value.detach().clone().requires_grad_() for value in objective.discriminator.parameters()]
    rows = objective.embedding.weight.detach().clone().requires_grad_() if name == "cdann" else None
    assert [tuple(layer.shape) for layer in layers] == [(12, 6), (12,), (12, 12), (12,), (3, 12), (3,)]

    def adversary_loss(pooled: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        seen = pooled if rows is None else pooled + rows[y]
        if not seen.requires_grad:
            seen.requires_grad_()
        hidden = F.relu(F.linear(seen, layers[0], layers[1]))
        hidden = F.relu(F.linear(hidden, layers[2], layers[3]))
        each = F.cross_entropy(F.linear(hidden, layers[4], layers[5]), domain, reduction="none")
        if rows is None:
            loss = each.mean()
        else:  # the mean over classes of the mean over their images; a class below the largest may have none
            largest = int(y.max()) + 1
            loss = sum(each[y == label].mean() for label in range(largest) if (y == label).any()) / largest
        slope = torch.autograd.grad(each.sum(), seen, create_graph=True)[0]
        return loss + penalty * (slope**2).sum(1).mean()

    def plain() -> Steps:
        options = {"betas": (0.5, 0.9), "weight_decay": decay}
        generator = torch.optim.Adam(net.parameters(), lr=RATE, **options)
        theirs = layers if rows is None else [*layers, rows]
        discriminator = torch.optim.Adam(theirs, lr=rate or RATE, **options)
        for count, batch in enumerate(EVEN_BATCHES, start=1):
            x, y = (torch.cat(part) for part in zip(*batch.values(), strict=True))
            domain = torch.repeat_interleave(torch.arange(3), 6)
            pooled = features(net, x)
            if count % (1 + rounds) < rounds:
                yield descend(discriminator, adversary_loss(pooled.detach(), y, domain))
            else:
                loss = F.cross_entropy(head(net, pooled), y) - weight * adversary_loss(pooled, y, domain)
                yield descend(generator, loss)

    config = TrainConfig(steps=STEPS, learning_rate=RATE, weight_decay=decay, seed=SEED)
    trainer = Trainer(model, objective, config)
    run_beside(trainer, EVEN_BATCHES, net, plain(), tolerance=2e-6)
    for ours, theirs in zip(objective.discriminator.parameters(), layers, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=2e-5, atol=2e-5)
    if rows is not None:
        torch.testing.assert_close(objective.embedding.weight.detach(), rows.detach(), rtol=2e-6, atol=2e-6)


# ---- MIRO, which remembers


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_miro(decay):
    weight = 0.1
    model = staged_classifier()
    objective = prepared("miro", model, weight=weight)
    net = copy.deepcopy(model)  # in eval mode: its norm keeps the statistics
    pretrained = copy.deepcopy(model)
    start = math.log(math.exp(0.1 - 1e-5) - 1)
    spreads = [torch.full((1, channels, 1, 1), start, requires_grad=True) for channels in (3, 5)]

    def plain() -> Steps:
        optimiser = torch.optim.Adam(
            [{"params": list(net.parameters())}, {"params": spreads, "lr": 10 * RATE}], lr=RATE, weight_decay=decay
        )
        for batch in EVEN_BATCHES:
            x, y = (torch.cat(part) for part in zip(*batch.values(), strict=True))
            pooled, stages = features(net, x)
            with torch.no_grad():
                _, before = features(pretrained, x)
            loss = F.cross_entropy(head(net, pooled), y)
            for now, then, b in zip(stages, before, spreads, strict=True):
                variance = torch.log1p(torch.exp(b)) + 1e-5
                loss = loss + weight * 0.5 * ((now - then) ** 2 / variance + torch.log(variance)).mean()
            yield descend(optimiser, loss)

    trainer = Trainer(model, objective, TrainConfig(steps=STEPS, learning_rate=RATE, weight_decay=decay, seed=SEED))
    run_beside(trainer, EVEN_BATCHES, net, plain(), tolerance=2e-6)
    for ours, theirs in zip(objective.spread, spreads, strict=True):
        torch.testing.assert_close(ours.detach(), theirs[0].detach(), rtol=2e-6, atol=2e-6)
    for (name, ours), theirs in zip(model.named_buffers(), net.buffers(), strict=True):
        assert torch.equal(ours, theirs), name


def test_every_objective_is_followed():
    followed = {name.removeprefix("test_") for name in globals() if name.startswith("test_")} | {"cdann"}
    assert followed >= set(OBJECTIVES)
