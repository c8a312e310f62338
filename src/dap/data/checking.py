"""What is on disk of a suite, set against what should be there."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dap.data.decoding import find_unreadable
from dap.data.digits import digits
from dap.data.folders import list_folder
from dap.data.listing import Contents, some
from dap.data.suites import list_suite
from dap.specs.suites import SUITES


@dataclass
class Domain:
    images: int
    expected: int | None = None
    missing_classes: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # name to what is wrong


@dataclass
class Check:
    suite: str
    classes: int
    domains: dict[str, Domain]
    problems: list[str] = field(default_factory=list)  # without any the suite is whole
    notes: list[str] = field(default_factory=list)  # allowed, but worth knowing

    @property
    def whole(self) -> bool:
        return not self.problems


def check_suite(what: str | Path, root: str | Path | None = None, quick: bool = False) -> Check:
    """Counts and decodes every image; `quick` only counts them.

    >>> check_suite("digits").whole
    True
    """
    if what == "digits":
        counts = {domain: Domain(len(data)) for domain, data in digits().items()}
        check = Check("digits", SUITES["digits"].classes, counts)
    else:
        contents = _contents(what, root)
        check = Check(contents.name, len(contents.classes), {})
        for domain, listing in contents.domains.items():
            present = np.bincount(listing.labels, minlength=len(contents.classes)) > 0
            absent = [name for name, here in zip(contents.classes, present, strict=True) if not here]
            bad = {} if quick else find_unreadable(listing, domain)
            unreadable = {listing.names[row]: error for row, error in bad.items()}
            check.domains[domain] = Domain(len(listing), None, absent, unreadable)
        check.notes += [*contents.notes, *_shared_groups(contents)]
    _compare(check, str(what), root)
    _describe(check)
    return check


def _contents(what: str | Path, root: str | Path | None) -> Contents:
    benchmark = SUITES.get(str(what))
    if benchmark is None:
        return list_suite(what, root)
    folder = benchmark.place(root)
    present = [domain for domain in benchmark.images if (folder / domain).is_dir()]
    return list_folder(folder, str(what), present) if present else Contents(str(what), (), {})


def _compare(check: Check, what: str, root: str | Path | None) -> None:
    if (benchmark := SUITES.get(what)) is None:
        return
    for domain, expected in benchmark.images.items():
        found = check.domains.setdefault(domain, Domain(0))
        found.expected = expected
        if benchmark.uncleaned and found.images == benchmark.uncleaned[domain] != expected:
            more = found.images - expected
            check.notes.append(f"{domain} still has the {more} duplicates that DomainBed deletes: results will differ")
        elif found.images != expected:
            check.problems.append(f"{domain} has {found.images} images, not {expected}")
    if check.classes != benchmark.classes:
        check.problems.append(f"there are {check.classes} classes, not {benchmark.classes}")
    if check.problems:
        folder = benchmark.place(root)
        check.problems.append(f"{what} belongs in {folder}; get it from: {benchmark.home}")
    check.domains = dict(sorted(check.domains.items()))


def _describe(check: Check) -> None:
    for domain, found in check.domains.items():
        for name, error in found.unreadable.items():
            check.problems.append(f"{name} cannot be read: {error}")
        if found.images and found.missing_classes:
            check.notes.append(f"{domain} has no images of {some(found.missing_classes, 10)}")


def _shared_groups(contents: Contents) -> list[str]:
    homes: dict[int, list[str]] = defaultdict(list)
    for domain, listing in contents.domains.items():
        if listing.groups is not None:
            for group in np.unique(listing.groups).tolist():
                homes[group].append(domain)
    shared = [contents.group_names[group] for group, domains in sorted(homes.items()) if len(domains) > 1]
    return [f"{len(shared)} groups are in more than one domain: {some(shared)}"] if shared else []
