"""The public benchmarks: where their images lie below a root, and how many there are."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dap.errors import DapError
from dap.runtime.files import expanded

DOMAINBED = "DomainBed's domainbed/scripts/download.py fetches it"


@dataclass(frozen=True)
class Benchmark:
    folder: str | None  # below the root; None for what is made and not read
    images: dict[str, int]  # domain to number of images
    classes: int
    home: str  # where to get it
    # As published, where DomainBed leaves duplicates out: the whole suite is accepted too.
    uncleaned: dict[str, int] | None = None

    def place(self, root: str | Path | None) -> Path:
        return expanded(root or "data") / str(self.folder)


SUITES = {
    "PACS": Benchmark(
        "PACS",
        {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        7,
        f"Li et al., Deeper, Broader and Artier Domain Generalization, 2017; {DOMAINBED}",
    ),
    "VLCS": Benchmark(
        "VLCS",
        {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        5,
        f"Fang et al., Unbiased Metric Learning, 2013; {DOMAINBED}",
    ),
    "OfficeHome": Benchmark(
        "office_home",
        {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        65,
        f"Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, 2017; {DOMAINBED}",
    ),
    "TerraIncognita": Benchmark(
        "terra_incognita",
        {"location_100": 4879, "location_38": 9767, "location_43": 4020, "location_46": 6122},
        10,
        f"Beery et al., Recognition in Terra Incognita, 2018; {DOMAINBED}",
    ),
    # DomainBed deletes the 9,431 files of its domainbed/misc/domain_net_duplicates.txt after unpacking.
    "DomainNet": Benchmark(
        "domain_net",
        {"clipart": 48129, "infograph": 51605, "painting": 72266, "quickdraw": 172500, "real": 172947, "sketch": 69128},
        345,
        f"Peng et al., Moment Matching for Multi-Source Domain Adaptation, 2019; {DOMAINBED}",
        {"clipart": 48833, "infograph": 53201, "painting": 75759, "quickdraw": 172500, "real": 175327, "sketch": 70386},
    ),
    "digits": Benchmark(
        None,
        {"outline": 450, "plain": 449, "rotated": 449, "textured": 449},
        10,
        "made by dap from scikit-learn's digits",
    ),
}


def require_domains(suite: str, targets: Iterable[str], domains: Iterable[str]) -> None:
    """Refuse a target that `suite` does not have."""
    domains = list(domains)
    for target in targets:
        if target not in domains:
            raise DapError(f"{suite} has no domain {target!r}; it has {', '.join(domains)}")
