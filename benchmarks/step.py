"""What a step of mask learning costs, as ratios measured in one run.

    python benchmarks/step.py

Baseline: forward and backward of the frozen model on one batch of all images, with the gradients of all masked
weights, in its faster memory format. A DAP step has sampling, both losses, clipping, the optimiser and averaging
inside. Medians of interleaved repeats are compared. The last line is one JSON object.
"""

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import dap
from dap.masks.attach import maskable_weights
from dap.models import create_classifier
from dap.runtime.convolutions import fast_backward

DOMAINS = ("a", "b", "c")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    large = compare("resnet50", pixels=224, images=8, repeats=args.repeats)
    small = compare("resnet18", pixels=64, images=16, repeats=3 * args.repeats)
    print(json.dumps({**large, **{f"small_{name}": value for name, value in small.items()}}))


def compare(name: str, pixels: int, images: int, repeats: int) -> dict[str, float]:
    torch.manual_seed(0)
    batches = {domain: (torch.randn(images, 3, pixels, pixels), torch.randint(7, (images,))) for domain in DOMAINS}
    model = calibrated(create_classifier(name, 7), batches)
    formats = (torch.contiguous_format, torch.channels_last)
    memory = min(formats, key=lambda memory: median_of_three(dense_step(model, batches, memory)))
    model = model.to(memory_format=memory)  # pyright: ignore[reportCallIssue]
    batches = {domain: (x.contiguous(memory_format=memory), y) for domain, (x, y) in batches.items()}

    tensors = live_bytes()
    pruner = dap.Pruner(model, dap.PruneConfig(steps=10_000, alpha=1.0, f_update=10_000))
    pruner.step(batches)
    state_bytes = (live_bytes() - tensors) / pruner.layout.total
    eager = dap.Pruner(model, dap.PruneConfig(steps=10_000, alpha=1.0, f_update=1))
    median = medians(
        {
            "dense": dense_step(model, batches, memory),
            "dense, domain by domain": split_dense_step(model, batches),
            "ordinary": lambda: pruner.step(batches),
            "sensitivity": lambda: eager.step(batches),
            "naive": NaiveStep(model, batches),
        },
        repeats,
    )
    coral = dap.Pruner(model, dap.PruneConfig(steps=10_000, alpha=1.0, f_update=10_000), dap.objectives.Coral())
    coral_eager = dap.Pruner(model, dap.PruneConfig(steps=10_000, alpha=1.0, f_update=1), dap.objectives.Coral())
    median |= medians(
        {"CORAL, ordinary": lambda: coral.step(batches), "CORAL, sensitivity": lambda: coral_eager.step(batches)},
        repeats,
    )
    print(f"{name} at {pixels} pixels, 3 x {images} images, {pruner.layout.total:,} masked weights, {memory}")
    for label, value in median.items():
        print(f"  {label:24} {value:8.3f} s   {value / median['dense']:.3f} of dense")
    return {
        "step_over_dense": round(median["ordinary"] / median["dense"], 4),
        "step_over_split_dense": round(median["ordinary"] / median["dense, domain by domain"], 4),
        "sensitivity_over_ordinary": round(median["sensitivity"] / median["ordinary"], 4),
        "coral_sensitivity_over_ordinary": round(median["CORAL, sensitivity"] / median["CORAL, ordinary"], 4),
        "naive_over_step": round(median["naive"] / median["sensitivity"], 4),
        "state_bytes_per_weight": round(state_bytes, 3),
    }


def medians(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each step; they take turns."""
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for repeat in range(repeats + 1):
        for label, step in steps.items():
            if label == "naive" and repeat > max(2, repeats // 3):
                continue
            duration = timed(step)
            if repeat:  # the first is a warm-up
                seconds[label].append(duration)
    return {label: statistics.median(values) for label, values in seconds.items()}


def timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def median_of_three(step: Callable[[], object]) -> float:
    step()
    return statistics.median(timed(step) for _ in range(3))


def calibrated(model: nn.Module, batches: dict[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """Running statistics that fit the random weights: without them activations overflow in eval mode."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.cat([x for x, _ in batches.values()]))
    return model.eval()


def dense_step(model: nn.Module, batches: dict[str, tuple[Tensor, Tensor]], memory: torch.memory_format):
    """The baseline: one batch, gradients of the masked weights alone."""
    model = frozen_copy(model).to(memory_format=memory)  # pyright: ignore[reportCallIssue]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    images = torch.cat([x for x, _ in batches.values()]).contiguous(memory_format=memory)
    labels = torch.cat([y for _, y in batches.values()])

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        with fast_backward(weights):  # as in ours: what is compared is the method
            torch.autograd.grad(loss, weights)

    return step


def split_dense_step(model: nn.Module, batches: dict[str, tuple[Tensor, Tensor]]):
    """The same gradients from a pass for each domain: on a CPU often faster than one large batch."""
    model = frozen_copy(model)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step() -> None:
        risks = [F.cross_entropy(model(x), y) for x, y in batches.values()]
        with fast_backward(weights):
            torch.autograd.grad(torch.stack(risks).mean(), weights)

    return step


def frozen_copy(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for weight in maskable_weights(model).values():
        weight.requires_grad_()
    return model


class NaiveStep:
    """The same step as a reader of the paper would write it first, sensitivity included."""

    def __init__(self, model: nn.Module, batches: dict[str, tuple[Tensor, Tensor]]):
        self.model, self.batches = copy.deepcopy(model).eval().requires_grad_(False), batches
        self.weights = {name: weight.detach() for name, weight in maskable_weights(self.model).items()}
        self.logits = {name: torch.full_like(w, 2.94).requires_grad_() for name, w in self.weights.items()}
        self.sensitivity = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.average = {name: logit.detach().clone() for name, logit in self.logits.items()}
        self.adam = torch.optim.Adam(self.logits.values(), lr=0.05, eps=1e-12)

    def masked(self) -> dict[str, Tensor]:
        masked = {}
        for name, weight in self.weights.items():
            effective = self.logits[name] - self.sensitivity[name]
            pair = torch.stack([torch.zeros_like(effective), effective], dim=-1)
            masked[name] = weight * F.gumbel_softmax(pair, tau=0.7)[..., 1]
        return masked

    def __call__(self) -> None:
        masked, gradients = {name: weight.detach().requires_grad_() for name, weight in self.masked().items()}, []
        for images, labels in self.batches.values():
            risk = F.cross_entropy(functional_call(self.model, masked, (images,)), labels)
            with fast_backward(masked.values()):
                gradients.append(torch.autograd.grad(risk, list(masked.values())))
        for name, *parts in zip(masked, *gradients, strict=True):
            score = -sum(torch.sign(a) * torch.sign(b) for a, b in combinations(parts, 2)) / 3
            self.sensitivity[name] = 0.92 * self.sensitivity[name] + 0.08 * score
        masked = self.masked()
        images, labels = (torch.cat([batch[part] for batch in self.batches.values()]) for part in (0, 1))
        loss = F.cross_entropy(functional_call(self.model, masked, (images,)), labels)
        keep = [torch.sigmoid(self.logits[name] - self.sensitivity[name]).flatten() for name in self.logits]
        loss = loss + 3.0 * (torch.cat(keep).mean() - 0.05) ** 2
        self.adam.zero_grad()
        with fast_backward(self.weights.values()):
            loss.backward()
        torch.nn.utils.clip_grad_value_(self.logits.values(), 6.0)
        torch.nn.utils.clip_grad_norm_(self.logits.values(), 4.0)
        self.adam.step()
        for name, logit in self.logits.items():
            self.average[name] = 0.95 * self.average[name] + 0.05 * (logit.detach() - self.sensitivity[name])


def live_bytes() -> int:
    """The bytes of every tensor that is alive in this process, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (Tensor, nn.Parameter):  # not the compiler's imitations, which have no memory
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


if __name__ == "__main__":
    main()
