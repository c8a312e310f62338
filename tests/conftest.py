"""Models and data that many tests share."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from dap.models import Classifier
from dap.objectives import OBJECTIVES, Objective
from dap.report import read_findings, read_records
from dap.studies.study import keep_file
from dap.studies.work import work_on
from data.small_suites import make_folder
from pacs import SHARED
from small_studies import REPORTED, make_study

# Nobody's own cache is touched, also by processes that tests start.
os.environ["DAP_CACHE"] = tempfile.mkdtemp(prefix="dap-cache-")
atexit.register(shutil.rmtree, os.environ["DAP_CACHE"], ignore_errors=True)

# The profile says how many examples a property test tries: the same ones every time, or many new ones in each run
# (`--hypothesis-profile explore`). A test that needs more or fewer takes a multiple of `settings().max_examples`.
settings.register_profile("same", deadline=None, database=None, derandomize=True, max_examples=200)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=5000, print_blob=True)
settings.load_profile("same")


def pytest_runtest_setup() -> None:
    """Every test starts from the same state of torch's generator, whichever ran before it in the process."""
    torch.manual_seed(0)


class Attention(nn.Module):
    """A vision transformer in miniature: patches, one encoder layer with nn.MultiheadAttention, a linear head."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.encoder(tokens).mean(1))


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.stem = nn.Linear(3 * 8 * 8, 16)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(images.flatten(1)))
        return self.head(torch.relu(self.second(torch.relu(self.first(hidden)))))


def convolutional(classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, groups=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(12, classes),
    )


def channels_last(classes: int = 3) -> nn.Module:
    return convolutional(classes).to(memory_format=torch.channels_last)  # pyright: ignore


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": convolutional,
    "channels_last": channels_last,
    "attention": Attention,
    "tied": Tied,
}


def make_model(kind: str) -> nn.Module:
    """A model of `kind`, always the same, with running statistics that are not the initial ones."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


class Stages(nn.Module):
    """Two stages and their pooled features."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.ReLU())

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        stem = self.stem(images)
        body = self.body(stem)
        return body.mean((2, 3)), (stem, body)


def make_classifier(classes: int = 3) -> Classifier:
    """A classifier that exposes what any objective may need, always the same."""
    torch.manual_seed(0)
    return Classifier.of(Stages(), nn.Linear(8, classes), stage_channels=(6, 8))


def make_objective(name: str, model: nn.Module, domains: Iterable[str], classes: int = 3) -> Objective:
    """An objective as training with it leaves it: prepared, and with MIRO's model away from its reference."""
    torch.manual_seed(1)
    objective = OBJECTIVES[name]()
    objective.prepare(model, tuple(domains), classes)
    if name == "miro":
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
    return objective


def make_batches(domains: int = 3, size: int = 6, seed: int = 0, classes: int = 3) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"domain {index}": (
            torch.randn(size, 3, 8, 8, generator=generator) + 0.3 * index,
            torch.randint(classes, (size,), generator=generator),
        )
        for index in range(domains)
    }


@pytest.fixture
def shared() -> Path:
    if not ((SHARED / "data" / "PACS").is_dir() and (SHARED / "weights" / "resnet18.safetensors").is_file()):
        pytest.skip("needs the real PACS images and weights: set DAP_SHARED to the folder that holds them")
    return SHARED


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """Done, with evaluations."""
    folder = tmp_path_factory.mktemp("report")
    images = make_folder(folder / "images", {domain: {"x": 10, "y": 10} for domain in "abc"})
    study = make_study(folder, REPORTED.format(images=images))
    keep_file(study, folder / "study.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAP_CACHE", str(folder / "cache"))
        for run, spec in study.runs.items():
            assert work_on(spec, study.folder, lambda progress: None) == ("done", ""), run
    return study


@pytest.fixture(scope="session")
def records(study):
    return read_records(study.folder)


@pytest.fixture(scope="session")
def findings(study, records):
    return read_findings(study.folder, records)
