"""What counts is what runs: weights that an evaluation pass does not use, and models of which little can be masked."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dap
from conftest import Attention, make_batches
from dap.criteria import Calibration
from dap.masks.attach import MaskedModel, maskable_weights
from dap.models.torchvision_repair import repair_torchvision
from dap.specs.methods import METHODS

SOURCES = {domain: TensorDataset(*batch) for domain, batch in make_batches(size=12).items()}
CONFIG = dap.PruneConfig(steps=6, target_sparsity=0.5, f_update=2)
LEFT_OUT = r"take no part in an evaluation pass and are left out \(aux\.0\.weight, aux\.2\.weight\)"


class Auxiliary(nn.Module):
    """A head that only training uses, larger than the rest."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1))
        self.aux = nn.Sequential(nn.Linear(8, 200), nn.ReLU(), nn.Linear(200, 3))
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor):
        features = self.body(images).flatten(1)
        if self.training:
            return self.head(features) + 0.3 * self.aux(features)
        return self.head(features)


RUNS = {"body.0.weight", "body.2.weight", "head.weight"}


def test_a_pruner_leaves_out_what_no_pass_uses_and_resumes(tmp_path):
    options = {"milestones": (0.2,), "checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 2}
    with pytest.warns(UserWarning, match=LEFT_OUT):
        path = dap.learn_masks(Auxiliary(), SOURCES, CONFIG, **options)
    assert set(path.masks) == RUNS
    assert path.masks_at(0.5).kept == round(0.5 * path.pruner.layout.total)
    with pytest.warns(UserWarning, match=LEFT_OUT):
        again = dap.learn_masks(Auxiliary(), SOURCES, CONFIG, **options)
    assert torch.equal(again.pruner.ranking(), path.pruner.ranking())
    assert again.masks == path.masks


def test_a_state_from_before_the_first_step_is_restored():
    pruner = dap.Pruner(Auxiliary(), CONFIG)
    before = pruner.state_dict()
    with pytest.warns(UserWarning, match=LEFT_OUT):
        first = pruner.step(make_batches())
    pruner.load_state_dict(before)
    assert set(pruner.masks()) == RUNS | {"aux.0.weight", "aux.2.weight"}
    with pytest.warns(UserWarning, match=LEFT_OUT):
        assert pruner.step(make_batches()) == first


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_them_out(method):
    sparsities = None if METHODS[method].whole else [0.5]
    train = dap.TrainConfig(steps=2, learning_rate=1e-3)
    data = Calibration(SOURCES, batches=2, batch_size=6)
    model = Auxiliary()
    with pytest.warns(UserWarning, match=LEFT_OUT):
        (pruned,) = dap.prune(model, data, method, sparsities, config=CONFIG, train=train)
    assert set(pruned.masks) == RUNS
    assert pruned.model.get_parameter("aux.0.weight").ne(0).all()


def test_attention_tied_weights_and_a_model_without_a_graph_have_nothing_to_leave_out():
    images = make_batches()["domain 0"][0]
    assert MaskedModel(Attention()).unused(images) == []

    class Cut(Attention):
        def forward(self, images):
            return super().forward(images).detach()

    assert MaskedModel(Cut()).unused(images) == []  # the pruner has an error for it
    with pytest.raises(dap.DapError, match="no output depends on the weights"):
        dap.Pruner(Cut(), CONFIG).step(make_batches())


def test_googlenets_auxiliary_heads():
    repair_torchvision()
    import torchvision

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torchvision.models.googlenet(weights=None, num_classes=3, aux_logits=True, init_weights=False)

        def forward(self, images):
            return self.net(images)

    masked = MaskedModel(Logits().eval())
    unused = masked.unused(torch.randn(1, 3, 64, 64))
    assert unused
    assert all(name.startswith("net.aux") for name in unused)
    share = sum(masked.weights[name].numel() for name in unused) / sum(w.numel() for w in masked.weights.values())
    assert share > 0.4


# ---- little that can be masked


class Recurrent(nn.Module):
    """An image as a sequence of its rows; a recurrent layer, a matrix of its own, a small head."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, hidden: int = 8):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(24, 32, batch_first=True, num_layers=2)
        self.mix = nn.Parameter(torch.randn(32, 16) / 5)
        self.scale = nn.Parameter(torch.ones(16))
        self.hidden = nn.Linear(16, hidden)
        self.head = nn.Linear(hidden, 3)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.rnn(images.transpose(1, 2).flatten(2))
        return self.head(self.hidden((states[:, -1] @ self.mix) * self.scale).relu())


LAYERS = {"hidden.weight", "head.weight"}
RNN = {f"rnn.weight_{part}_l{layer}" for part in ("ih", "hh") for layer in (0, 1)}


def test_a_small_share_is_a_warning_that_names_the_largest_and_the_remedy():
    left_out = (
        r"left out are rnn\.weight_hh_l0, rnn\.weight_ih_l1, rnn\.weight_hh_l1.*include=\('\*', 'rnn\.weight_hh_l0'\)"
    )
    with pytest.warns(UserWarning, match=rf"only 0\.\d+% of the model's parameters can be masked.*{left_out}"):
        assert set(maskable_weights(Recurrent())) == LAYERS
    maskable_weights(Attention())  # most of it: no warning


def test_include_adds_matrices_of_any_module_by_name():
    model = Recurrent()
    assert set(maskable_weights(model, ["*", "rnn.weight_*", "mix"])) == LAYERS | {"mix"} | RNN
    assert set(maskable_weights(model, ["mix"])) == {"mix"}
    assert set(maskable_weights(model, ["rnn.weight_*"], ["*_l1"])) == {"rnn.weight_ih_l0", "rnn.weight_hh_l0"}
    assert set(maskable_weights(model, ["*"])) == LAYERS  # a pattern that matches layers adds nothing else
    with pytest.raises(dap.DapError, match="no maskable weight matches 'scale'"):
        maskable_weights(model, ["scale"])  # a vector


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_run_with_their_masks(kind):
    """They keep a list of their weights beside their parameters."""
    model = Recurrent(kind).eval()
    masked, images = MaskedModel(model, include=["*", "rnn.weight_*", "mix"]), make_batches()["domain 0"][0]
    masks = dap.Masks({name: torch.rand(weight.shape) > 0.5 for name, weight in masked.weights.items()})
    before = [*model.rnn._flat_weights]
    outputs = masked({name: weight * masks[name] for name, weight in masked.weights.items()}, images)
    assert torch.equal(outputs, dap.bake(model, masks)(images))
    assert not torch.allclose(outputs, model(images))
    assert all(one is other for one, other in zip(model.rnn._flat_weights, before, strict=True))

    config = dap.PruneConfig(steps=6, target_sparsity=0.5, include=("*", "rnn.weight_*", "mix"))
    pruner = dap.Pruner(model, config)
    for step in range(3):
        pruner.step(make_batches(seed=step))
    moved = pruner.layout.expand((pruner.effective - pruner.effective.max()).abs())
    assert all(part.std() > 0 for part in moved.values())  # the task's gradient reaches each of them


def test_training_reaches_recurrent_layers():
    model = Recurrent()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    dap.train(model, SOURCES, dap.TrainConfig(steps=2, learning_rate=1e-3))
    assert all(not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


@pytest.mark.filterwarnings("ignore:a sparsity of 0.3 was asked for")
@pytest.mark.parametrize("allocation", ["global", "per_layer", "erk", "channels", "global_channels", "2:4"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_added_matrices_under_every_method(method, allocation):
    """Rows and patterns of inputs leave such a matrix whole. Wanda and DSS look into layers alone, and say so."""
    config = dap.PruneConfig(steps=2, target_sparsity=0.5, include=("*", "rnn.weight_*", "mix"))
    model, data = Recurrent(hidden=1200), Calibration(SOURCES, batches=1, batch_size=6)
    sparsities = [0.3] if ":" not in allocation and not METHODS[method].whole else None
    train = dap.TrainConfig(steps=1, learning_rate=1e-3)

    def prune():
        return [*dap.prune(model, data, method, sparsities, allocation=allocation, config=config, train=train)]

    by_row = "channels" in allocation
    if method in ("wanda", "dss") or (method == "ior" and not by_row) or (method == "control" and ":" in allocation):
        with pytest.raises(dap.DapError, match="layers|scores whole channels|the convolutions after|cuts nothing"):
            prune()
        return
    (pruned,) = prune()
    assert set(pruned.masks) == LAYERS | {"mix"} | RNN
    if by_row or ":" in allocation:
        assert all(pruned.masks[name].all() for name in {"mix"} | RNN)


# ---- what is used, and how


class WithoutGraph(Auxiliary):
    """A frozen body, and a head whose output is dropped."""

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(images).flatten(1)
        self.aux(features)
        return self.head(features)


def test_what_runs_without_a_graph_is_used():
    images = make_batches()["domain 0"][0]
    assert MaskedModel(WithoutGraph()).unused(images) == ["aux.0.weight", "aux.2.weight"]


class Routed(Auxiliary):
    """The index of an output decides which way an image goes: no gradient tells of it."""

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images).flatten(1)
        way = self.aux(features).argmax(1)
        return self.head(features * (1 + way.unsqueeze(1)))


def test_what_decides_alone_is_used():
    assert MaskedModel(Routed()).unused(make_batches()["domain 0"][0]) == []


def test_looking_for_them_leaves_the_batches_as_they_are():
    class InPlace(Auxiliary):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.mul_(2).add_(1))

    batches, seen = make_batches(), make_batches()
    with pytest.warns(UserWarning, match=LEFT_OUT):
        dap.Pruner(InPlace(), CONFIG).step(batches)
    assert all(torch.equal(batches[domain][0], seen[domain][0]) for domain in seen)


def test_a_name_is_a_pattern_of_itself():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "[b]*": nn.Linear(4, 4), "[c]": nn.Embedding(4, 4)})
    assert set(maskable_weights(model, ["[b]*.weight"])) == {"[b]*.weight"}
    assert set(maskable_weights(model, ["*", "[c].weight"], ["a.weight"])) == {"[b]*.weight", "[c].weight"}
