"""The table of docs/custom-model.md, cell by cell: what should work does, and the rest is one line with the remedy."""

import copy
import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.utils import parametrizations
from torch.nn.utils import prune as hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import dap
from conftest import make_classifier
from dap.criteria import Calibration
from dap.evaluation.accuracy import accuracy
from dap.evaluation.assessment import assess_logits, predictions
from dap.export import export_onnx, export_program
from dap.models import ModelCard
from dap.structure import remove_channels

PAGE = Path(__file__).parents[2] / "docs" / "custom-model.md"
COLUMNS = ("pruning", "channels", "training", "evaluation", "export")
CARD = ModelCard(("a", "b", "c"), 8)
IMAGES = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3
DATASET = TensorDataset(IMAGES, LABELS)
CONFIG = dap.PruneConfig(steps=2, target_sparsity=0.6, f_start=1, f_update=2, batch_size=6)

# Of torch, about its own old parts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


class Own(nn.Module):
    """A user's model: whatever `forward` does with a network and a batch."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Any]):
        super().__init__()
        self.network, self._forward = network(), forward

    def forward(self, inputs: Tensor) -> Any:
        return self._forward(self.network, inputs)


class Shallow(Own):
    def __deepcopy__(self, memo: Any) -> "Shallow":
        return self


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs) if inputs.sum() > 0 else self.network(-inputs)


def changed(change: Callable[[nn.Sequential], object]) -> nn.Sequential:
    model = network()
    change(model)
    return model


def locked() -> nn.Module:
    model = Own(lambda network, inputs: network(inputs))
    model.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    return model


def remembering() -> nn.Module:
    """Its last activation, with the graph behind it."""
    model = Own(lambda network, inputs: network(inputs))
    model.network[3].register_forward_hook(lambda module, _, output: setattr(module, "kept", output))  # pyright: ignore
    model(IMAGES)
    return model


def in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return network()


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return network()


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network().eval(), {nn.Linear}, dtype=torch.qint8)


def quantised_statically() -> nn.Module:
    whole = nn.Sequential(torch.ao.quantization.QuantStub(), network(), torch.ao.quantization.DeQuantStub()).eval()
    whole.qconfig = torch.ao.quantization.get_default_qconfig("x86")  # pyright: ignore
    prepared = torch.ao.quantization.prepare(whole)
    prepared(IMAGES)
    return torch.ao.quantization.convert(prepared)


def exported() -> nn.Module:
    batch = {0: torch.export.Dim("batch")}
    return torch.export.export(network().eval(), (IMAGES[:2],), dynamic_shapes=(batch,)).module()


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(network(), mesh=init_device_mesh("cpu", (1,)))


@contextmanager
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Listed:
    """A dataset of a user's own."""

    def __init__(self, item: Callable[[Tensor, int], Any]):
        self.items = [item(image, int(label)) for image, label in zip(IMAGES, LABELS, strict=True)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def batches(make: Callable[[Tensor, Tensor], Any]) -> list[Any]:
    return [make(*batch) for batch in zip(IMAGES.split(6), LABELS.split(6), strict=True)]


def by_domain(outputs: Any, labels: Any) -> Tensor:
    return torch.stack([F.cross_entropy(outputs[domain].logits, labels[domain]) for domain in outputs])


@dataclass(frozen=True)
class Case:
    model: Callable[[], Any] = network
    source: Any = DATASET
    objective: Any = None
    distributed: bool = False


def of(dtype: torch.dtype) -> Case:
    return Case(lambda: network().to(dtype), TensorDataset(IMAGES.to(dtype), LABELS))


def models(*made: Callable[[], Any], **options: Any) -> list[Case]:
    return [Case(model, **options) for model in made]


def sources(*given: Any) -> list[Case]:
    return [Case(source=source) for source in given]


def objectives(*given: Any) -> list[Case]:
    return [Case(objective=objective) for objective in given]


CASES: dict[str, list[Case]] = {
    "a module in float32, float64 or bfloat16": [of(torch.float32), of(torch.float64), of(torch.bfloat16)],
    "a module in float16": [of(torch.float16)],
    "all parameters without requires_grad": models(lambda: network().requires_grad_(False)),
    "channels last, hooks of your own, inputs that forward changes in place": models(
        lambda: network().to(memory_format=torch.channels_last),  # pyright: ignore
        lambda: changed(lambda model: model[0].register_forward_hook(lambda module, given, output: output)),
        lambda: Own(lambda network, inputs: network(inputs.sub_(0.1).div_(2))),
    ),
    "torch.compile, torch.fx.symbolic_trace": models(
        lambda: torch.compile(network(), backend="eager"),
        lambda: torch.compile(Own(lambda network, inputs: network(inputs)), backend="eager"),
        lambda: torch.fx.symbolic_trace(network()),
    ),
    "nn.DataParallel, DistributedDataParallel": [
        *models(lambda: nn.DataParallel(network())),
        *models(lambda: nn.parallel.DistributedDataParallel(network()), distributed=True),
    ],
    "fully_shard (FSDP)": models(sharded, distributed=True),
    "torch.jit.script and trace": models(
        lambda: torch.jit.script(network()), lambda: torch.jit.trace(network().eval(), IMAGES[:2])
    ),
    "a module of torch.export, made in eval mode": models(exported),
    "quantised, or prepared for it (torch.ao.quantization)": models(quantised, quantised_statically),
    "weights on the meta device": models(on_meta),
    "lazy layers that have seen no batch": models(
        lambda: nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    ),
    "parametrizations: weight norm, spectral norm": models(
        lambda: changed(lambda model: parametrizations.weight_norm(model[7])),
        lambda: changed(lambda model: parametrizations.spectral_norm(model[7])),
    ),
    "torch.nn.utils.prune": models(lambda: changed(lambda model: hooks.l1_unstructured(model[7], "weight", 0.5))),
    "made in torch.inference_mode": models(in_inference_mode),
    "gradient checkpointing": models(
        lambda: Own(lambda network, inputs: checkpoint(network, inputs, use_reentrant=False))
    ),
    "a model that cannot be deep-copied": models(
        locked, remembering, lambda: Shallow(lambda network, inputs: network(inputs))
    ),
    "random numbers in eval mode": models(
        lambda: Own(lambda network, inputs: network(inputs + torch.randn_like(inputs)))
    ),
    "control flow that depends on values of inputs": models(Branches),
    "outputs other than logits: a tuple, a dict, one number per image": models(
        lambda: Own(lambda network, inputs: (network(inputs), inputs)),
        lambda: Own(lambda network, inputs: {"logits": network(inputs)}),
        lambda: Own(lambda network, inputs: network(inputs)[:, 0]),
    ),
    "anything but a module": models(lambda: lambda inputs: inputs.mean((2, 3))),
    "batches (inputs, labels, …): all after the labels is ignored": sources(
        TensorDataset(IMAGES, LABELS, LABELS),
        DataLoader(TensorDataset(IMAGES, LABELS, LABELS), 6),
        Listed(lambda image, label: (image, label, {"file": "x.png"})),
    ),
    "batches of NumPy arrays": sources(
        batches(lambda inputs, labels: (inputs.numpy(), labels.numpy())),
        Listed(lambda image, label: (image.numpy(), label)),
    ),
    "inputs of another dtype than the weights": sources(
        TensorDataset(IMAGES.double(), LABELS),
        TensorDataset(IMAGES.bfloat16(), LABELS),
        TensorDataset(IMAGES.mul(255).byte(), LABELS),
    ),
    "batches that are dictionaries, or inputs without labels": sources(
        batches(lambda inputs, labels: {"image": inputs, "label": labels}),
        Listed(lambda image, label: {"image": image, "label": label}),
        TensorDataset(IMAGES),
    ),
    "two tensors or a dictionary as inputs": sources(
        batches(lambda inputs, labels: ((inputs, inputs), labels)),
        Listed(lambda image, label: ({"image": image}, label)),
    ),
    "items of different shapes, or that are no tensors": sources(
        Listed(lambda image, label: (image[:, : 4 + label], label)), Listed(lambda image, label: (object(), label))
    ),
    'an objective by its name: "coral"': [Case(lambda: make_classifier(), objective="coral")],
    "nn.CrossEntropyLoss(), F.cross_entropy: the mean over the domains": objectives(
        nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 1.0]), label_smoothing=0.1), F.cross_entropy
    ),
    "a loss that is not reduced": objectives(nn.CrossEntropyLoss(reduction="none"), by_domain),
    "a function of logits and labels": objectives(lambda logits, labels: F.cross_entropy(logits, labels)),
    "a class, or anything that cannot be called": objectives(dap.objectives.Coral, 3),
}


# ---- what each column does


def pruned(case: Case, model: Any, folder: Path) -> None:
    path = dap.learn_masks(
        model, {"a": case.source, "b": case.source}, CONFIG, objective=case.objective, validation={"a": case.source}
    )
    assert path.masks_at(0.5).sparsity == pytest.approx(0.5, abs=0.01)
    dap.bake(model, path.masks_at(0.5))


def scored(case: Case, model: Any, folder: Path) -> None:
    data = Calibration({"a": case.source, "b": case.source}, case.objective, batches=1, batch_size=6)
    assert [found.masks.sparsity > 0 for found in dap.prune(model, data, "taylor", [0.5])] == [True]


def without_channels(case: Case, model: Any, folder: Path) -> None:
    data = Calibration({"a": case.source, "b": case.source}, case.objective, batches=1, batch_size=6)
    (found,) = dap.prune(model, data, "dap", [0.3], allocation="flops", config=CONFIG)
    assert found.flops is not None
    assert found.flops <= 0.7
    remove_channels(model, found.masks)


def trained(case: Case, model: Any, folder: Path) -> None:
    before = copy.deepcopy(network().state_dict())
    config = dap.TrainConfig(steps=2, batch_size=6)
    dense = dap.train(model, {"a": case.source, "b": case.source}, config, objective=case.objective)
    assert len(dense.losses) == 2
    assert not any(torch.equal(parameter, before["0.weight"]) for parameter in model.parameters())


def evaluated(case: Case, model: Any, folder: Path) -> None:
    assert accuracy(model, case.source) >= 0


def assessed(case: Case, model: Any, folder: Path) -> None:
    assert assess_logits(*predictions(model, case.source)).images == 12


def to_onnx(case: Case, model: Any, folder: Path) -> None:
    export_onnx(model, folder / "model.onnx", CARD, IMAGES[:3])


def to_program(case: Case, model: Any, folder: Path) -> None:
    export_program(model, folder / "model.pt2", IMAGES[:3])


DOES: dict[str, tuple[Callable[[Case, Any, Path], None], ...]] = {
    "pruning": (pruned, scored),
    "channels": (without_channels,),
    "training": (trained,),
    "evaluation": (evaluated, assessed),
    "export": (to_onnx, to_program),
}


# ---- the table


def read_table() -> dict[str, list[str]]:
    lines = PAGE.read_text().partition("## What works")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    assert tuple(rows[0][1:6]) == COLUMNS
    return {name: cells for name, *cells in rows[2:]}


TABLE = read_table()


def test_every_row_has_its_cases():
    assert list(TABLE) == list(CASES)
    for name, (*cells, remedy) in TABLE.items():
        assert set(cells) <= {"yes", "no", "–"}, name
        assert bool(remedy) == ("no" in cells), name


def values(model: Any) -> list[Tensor]:
    """What must not change; of a module made of other things than plain tensors, nothing can be compared."""
    tensors = model.state_dict().values() if isinstance(model, nn.Module) else ()
    return [
        tensor.detach().clone()
        for tensor in tensors
        if type(tensor.data if isinstance(tensor, Tensor) else tensor) is Tensor
        and not nn.parameter.is_lazy(tensor)
        and not tensor.is_meta
        and tensor.numel()
    ]


def cells() -> Iterable[Any]:
    for name, (*answers, remedy) in TABLE.items():
        for column, answer in zip(COLUMNS, answers, strict=True):
            if answer != "–":
                yield pytest.param(name, column, answer, remedy, id=f"{column}-{name}")


@pytest.mark.parametrize(("name", "column", "answer", "remedy"), list(cells()))
def test_the_cell_is_true(name: str, column: str, answer: str, remedy: str, tmp_path: Path):
    for case in CASES[name]:
        for do in DOES[column]:
            with one_process() if case.distributed else torch.enable_grad():
                model = case.model()
                before = values(model)
                if answer == "yes":
                    do(case, model, tmp_path)
                else:
                    with pytest.raises(dap.DapError) as caught:
                        do(case, model, tmp_path)
                    assert "\n" not in str(caught.value)
                    assert any(part in str(caught.value) for part in remedy.split("; ")), str(caught.value)
                    assert not list(tmp_path.iterdir())
                if column != "training" and "lazy" not in name:
                    assert all(map(torch.equal, values(model), before))


def test_a_compiled_model_without_a_length(tmp_path):
    """Its wrapper has a `__len__` that fails, so that asking whether there is a model must not ask for its length."""
    model = torch.compile(Own(lambda network, inputs: network(inputs)), backend="eager")
    data = Calibration({"a": DATASET, "b": DATASET}, batches=1, batch_size=6)
    (found,) = dap.prune(model, data, "movement", [0.5], train=dap.TrainConfig(steps=2, batch_size=6))
    assert found.moved
    assert export_onnx(found.model, tmp_path / "model.onnx", CARD, IMAGES[:3], found.model) < 1e-5
    assert export_program(found.model, tmp_path / "model.pt2", IMAGES[:3], found.model) < 1e-5
