"""Models, batches and losses of users: what is refused, what is left alone, and what is the same as before."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dap
from conftest import make_batches, make_model
from dap.criteria import Calibration
from dap.evaluation.accuracy import accuracy
from dap.evaluation.assessment import assess_logits, predictions
from dap.export import export_onnx, export_program
from dap.models import ModelCard
from dap.runtime.user_models import check_exportable, check_plain, copied

CONFIG = dap.PruneConfig(steps=4, target_sparsity=0.5, f_start=1, f_update=2)


class Inplace(nn.Module):
    """Normalises its inputs where they are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs.sub_(0.5).div_(2))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs.flatten(1)) if inputs.mean() > 0 else self.head(-inputs.flatten(1))


class Checkpointed(nn.Module):
    """Runs its middle again in the backward pass; its values are such that nothing else would notice."""

    def __init__(self, on: bool):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.last, self.on = nn.Linear(8, 3), on

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).relu()
        middle = checkpoint(self.middle, hidden, use_reentrant=False) if self.on else self.middle(hidden)
        return self.last(middle)  # pyright: ignore[reportArgumentType]


# ---- models


def test_a_part_that_cannot_work_is_named_by_its_path():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))
    with pytest.raises(dap.DapError, match="^1.0 is wrapped in DataParallel: give the module inside"):
        check_plain(model)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
def test_a_float_model_that_can_be_quantised_is_a_float_model():
    model = make_model("convolutional").eval()
    model.add_ = torch.ao.nn.quantized.FloatFunctional()  # pyright: ignore
    model.stub = torch.ao.quantization.QuantStub()  # pyright: ignore
    check_plain(model)
    model.qconfig = torch.ao.quantization.get_default_qconfig("x86")  # pyright: ignore
    prepared = torch.ao.quantization.prepare(model)
    with pytest.raises(dap.DapError, match="is quantised, or prepared for it"):
        check_exportable(prepared)


def test_a_weight_of_another_kind_of_tensor_is_named():
    class Other(Tensor):
        @staticmethod
        def __new__(cls, data: Tensor) -> "Other":
            return Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)  # pyright: ignore

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return args[0] if func is torch.ops.aten.detach.default else NotImplemented

    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(Other(torch.ones(2, 2)), requires_grad=False)
    with pytest.raises(dap.DapError, match="weight is a Other: give a model with ordinary tensors"):
        check_plain(model)


def test_float8_weights_are_refused():
    with pytest.raises(dap.DapError, match="only floating-point weights of 16 bits or more"):
        dap.Pruner(nn.Linear(4, 4).to(torch.float8_e4m3fn))


def test_lazy_layers_in_a_trainer():
    with pytest.raises(dap.DapError, match="weight has no shape yet: run one batch"):
        dap.Trainer(nn.LazyLinear(2), dap.objectives.Erm(), dap.TrainConfig(steps=1))


def test_checkpointing_would_give_other_masks_and_is_refused():
    batch = {"a": (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)}
    config = dap.PruneConfig(steps=4, target_sparsity=0.5, alpha=0.0)
    dap.Pruner(Checkpointed(False).eval(), config).step(batch)
    pruner = dap.Pruner(Checkpointed(True).eval(), config)
    before = pruner.ranking()
    with pytest.raises(dap.DapError, match="gradient checkpointing.*switch it off while pruning"):
        pruner.step(batch)
    assert torch.equal(pruner.ranking(), before)


def test_hooks_fire_and_stay():
    model, seen = make_model("convolutional"), []
    model[0].register_forward_hook(lambda module, given, output: seen.append(output.shape))  # pyright: ignore
    path = dap.learn_masks(model, make_sources(), CONFIG)
    assert seen
    sparse = dap.bake(model, path.masks)
    for one in (model, sparse):
        seen.clear()
        one(make_batches()["domain 0"][0])
        assert len(seen) == 1


def test_a_copy_shares_nothing():
    model = make_model("tied")
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert not own & {parameter.data_ptr() for parameter in copied(model).parameters()}


# ---- batches


def make_sources() -> dict[str, list[tuple[Tensor, Tensor]]]:
    return {name: [batch] for name, batch in make_batches().items()}


def test_a_model_that_changes_its_inputs_finds_them_as_they_were():
    """Else the data would move away with every pass."""
    sources = make_sources()
    before = copy.deepcopy(sources)
    model = Inplace().eval()
    expected = dap.learn_masks(nn.Sequential(Shift(), model.network), sources, CONFIG)
    found = dap.learn_masks(model, sources, CONFIG, validation=sources, eval_every=1)
    assert [row["loss"] for row in found.history] == pytest.approx([row["loss"] for row in expected.history])
    for method in ("wanda", "taylor"):
        list(dap.prune(model, Calibration(sources, batches=2), method, [0.5]))
    list(dap.prune(model, Calibration(sources, batches=2), "wanda", [0.3], allocation="flops"))
    dap.train(copy.deepcopy(model), sources, dap.TrainConfig(steps=2), validation=sources)
    source = sources["domain 0"]
    assert accuracy(model, source) == assess_logits(*predictions(model, source)).accuracy
    for name, batches in sources.items():
        assert torch.equal(batches[0][0], before[name][0][0])


class Shift(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - 0.5) / 2


def test_what_comes_after_the_labels_changes_nothing():
    plain = make_batches()
    more = {name: (*batch, {"file": "x.png"}) for name, batch in plain.items()}
    pruners = [dap.Pruner(make_model("convolutional"), CONFIG) for _ in range(2)]
    for _ in range(3):
        assert pruners[0].step(plain) == pruners[1].step(more)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("source", ["a/folder", None, 3])
def test_a_source_that_is_none(source):
    with pytest.raises(dap.DapError, match=f"a source is a {type(source).__name__}: give a dataset, or an iterable"):
        accuracy(make_model("convolutional"), source)
    with pytest.raises(dap.DapError, match="give a dataset, or an iterable of batches"):
        dap.learn_masks(make_model("convolutional"), {"a": source, "b": source}, CONFIG)


def test_an_error_in_a_users_forward_is_not_taken_for_one_of_dtypes():
    tokens = [(torch.randint(5, (4, 3)), torch.zeros(4, dtype=torch.long))]
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(11, 2))  # 12 would be right
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        accuracy(model, tokens)


# ---- losses


def test_cross_entropy_is_erm():
    rankings = []
    for objective in (None, "erm", nn.CrossEntropyLoss(), F.cross_entropy):
        pruner = dap.Pruner(make_model("convolutional"), CONFIG, objective)
        for step in range(4):
            pruner.step(make_batches(seed=step))
        rankings.append(pruner.ranking())
    assert all(torch.equal(rankings[0], other) for other in rankings[1:])


def test_another_loss_is_another_run(tmp_path):
    file = tmp_path / "run.safetensors"

    def learn(loss: nn.Module) -> dap.MaskPath:
        model = make_model("convolutional")
        return dap.learn_masks(model, make_sources(), CONFIG, objective=loss, checkpoint=file)

    learn(nn.CrossEntropyLoss(label_smoothing=0.1))
    learn(nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(dap.DapError, match="belongs to another objective .*label_smoothing"):
        learn(nn.CrossEntropyLoss(label_smoothing=0.2))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("corral", "there is no objective 'corral'; choose one of erm, irm"),
        (nn.MSELoss(), "MSELoss does not fit logits .6, 3. and labels .6. of torch.int64"),
        (lambda outputs, labels: None, "the objective gave a NoneType: it must give one number as a tensor"),
        (lambda outputs, labels: torch.tensor(1.0), "the loss does not depend on the model's outputs"),
        ("dann", "works on the model's features, and it gives none: wrap it in a dap.Classifier"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_a_loss_that_cannot_work(loss, message):
    with pytest.raises(dap.DapError, match=message):
        dap.learn_masks(make_model("convolutional"), make_sources(), CONFIG, objective=loss)


# ---- export


@pytest.mark.parametrize(
    "export",
    [
        lambda model, path, images: export_onnx(model, path, ModelCard(("a", "b"), 2), images),
        export_program,
    ],
    ids=["onnx", "program"],
)
def test_a_model_that_cannot_be_exported_is_one_line_and_nothing_else(export, tmp_path, capfd):
    with pytest.raises(dap.DapError, match="its control flow depends on the values of its inputs") as caught:
        export(Branches(), tmp_path / "model", torch.randn(3, 3, 2, 2))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_rows_of_numbers_as_a_program(tmp_path):
    export_program(nn.Linear(4, 2), tmp_path / "model.pt2", torch.randn(3, 4))
    again = torch.export.load(tmp_path / "model.pt2").module()
    assert again(torch.randn(5, 4)).shape == (5, 2)
