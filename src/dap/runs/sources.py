"""The images of a suite as a run sees them: what is trained on, what is held out, what stays unseen."""

import warnings
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from dap.data import Images, Suite, load_suite, split_suite
from dap.errors import DapError
from dap.evaluation import score
from dap.evaluation.bits import pack_bits
from dap.models import ModelCard
from dap.runtime.ranks import ALONE, Ranks
from dap.runtime.sources import Source
from dap.specs.runs import ModelSpec, TrainSpec
from dap.specs.suites import require_domains


@dataclass(frozen=True)
class Sources:
    """The images of a suite as training sees them."""

    train: dict[str, Source]
    held_out: dict[str, Source]
    # By unseen domain: its 80 %, which DomainBed reports, and its 20 %, which the oracle looks at.
    targets: dict[str, dict[str, Source]]


def suite_of(spec: TrainSpec | ModelSpec) -> Suite:
    return load_suite(spec.suite, spec.root, spec.pixels, on_corrupt=spec.on_corrupt)


def notes_of(spec: TrainSpec | ModelSpec, suite: Suite) -> dict[str, Any]:
    """For a model's card: the images that it is for, and how they were split."""
    notes = {"suite": suite.name, "images": spec.suite, "targets": list(spec.targets), "seed": spec.train.seed}
    notes["listings"] = listings(suite)
    return notes if spec.on_corrupt == "fail" else {**notes, "on_corrupt": spec.on_corrupt}


def listings(suite: Suite) -> dict[str, str]:
    """By domain, what changes when images are added, removed or renamed: splits and labels follow from names."""
    return {domain: data.identity if isinstance(data, Images) else "made" for domain, data in suite.domains.items()}


def check_images(suite: Suite, card: ModelCard) -> None:
    """Refuse images on which a model's numbers would be wrong; unseen domains may have others."""
    remedy = "restore the images, or train again"
    if suite.classes != card.class_names:
        ours, theirs = ", ".join(suite.classes), ", ".join(card.class_names)
        raise DapError(f"{suite.name} has the classes {ours}, and the model was trained for {theirs}: {remedy}")
    found, before = listings(suite), card.notes.get("listings", {})
    if before and found.keys() != before.keys():
        ours, theirs = ", ".join(found), ", ".join(before)
        raise DapError(f"{suite.name} has the domains {ours}, and when the model was trained {theirs}: {remedy}")
    for domain in before.keys() - set(card.notes["targets"]):
        if found[domain] != before[domain]:
            risk = "what is held out now may have been trained on"
            raise DapError(f"images of {domain} were added, removed or renamed since training, so {risk}: {remedy}")


def divide(suite: Suite, targets: tuple[str, ...], seed: int) -> Sources:
    """Split every domain and set the unseen ones apart; training images are augmented where they can be."""
    require_domains(suite.name, targets, suite.domains)
    if not set(suite.domains) - set(targets):
        raise DapError(f"every domain of {suite.name} is a target: leave at least one to train on")
    parts = split_suite(suite, seed)
    sources = Sources({}, {}, {})
    for domain, (rest, held_out) in parts.items():
        counts = [len(cast(Sized, part)) for part in (rest, held_out)]
        if not all(counts):
            raise DapError(f"{suite.name}: of {sum(counts)} images of {domain} a fifth cannot be held out: add images")
        if domain in targets:
            sources.targets[domain] = {"80 %": rest, "20 %": held_out}
        else:
            sources.train[domain] = rest.augmented() if isinstance(rest, Images) else rest
            sources.held_out[domain] = held_out
    _warn_of_shared_groups(suite, targets)
    return sources


def _warn_of_shared_groups(suite: Suite, targets: tuple[str, ...]) -> None:
    groups = {
        domain: set(images.groups.tolist())
        for domain, images in suite.domains.items()
        if isinstance(images, Images) and images.groups is not None
    }
    for target in targets:
        seen = set[int]().union(*(found for domain, found in groups.items() if domain not in targets))
        if shared := groups.get(target, set()) & seen:
            warnings.warn(f"{len(shared)} groups of {target} are also in a source: it is not unseen", stacklevel=3)


def on_targets(model: nn.Module, sources: Sources, ranks: Ranks = ALONE) -> dict[str, dict[str, Any]]:
    """`targets`, the accuracy on every unseen domain: its 80 %, its 20 %, and all of it; and `right`, which images."""
    accuracies, right = {}, {}
    for target, parts in sources.targets.items():
        scores = {part: score(model, data, ranks=ranks, domain=target) for part, data in parts.items()}
        images = sum(found.images for found in scores.values())
        whole = sum(found.accuracy * found.images for found in scores.values()) / images
        accuracies[target] = {part: found.accuracy for part, found in scores.items()} | {"all": whole}
        right[target] = pack_bits(torch.cat([found.right for found in scores.values() if found.right is not None]))
    return {"targets": accuracies, "right": right}
