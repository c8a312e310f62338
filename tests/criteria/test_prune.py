import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from conftest import make_batches, make_model
from dap.config import PruneConfig, TrainConfig
from dap.criteria import Calibration
from dap.criteria.prune import prune
from dap.errors import DapError
from dap.masks.allocation import keep_count
from dap.models import create_classifier
from dap.specs.methods import METHODS
from dap.structure import remove_channels

SOURCES = {domain: TensorDataset(*batch) for domain, batch in make_batches(size=16).items()}
CONFIG = PruneConfig(steps=6, target_sparsity=0.6)


def data(**options) -> Calibration:
    return Calibration(SOURCES, **{"batches": 2, "batch_size": 6, **options})


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.whole])
def test_every_method_gives_the_same_kind_of_thing(method):
    model = make_model("convolutional")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = list(
        prune(model, data(), method, [0.2, 0.5], config=CONFIG, train=TrainConfig(steps=3, learning_rate=1e-3))
    )
    assert [pruned.wished for pruned in found] == ["0.2", "0.5"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for pruned in found:
        assert type(pruned.model) is type(model)
        zeros = {name: pruned.model.get_parameter(name) == 0 for name in pruned.masks}
        assert all(torch.equal(zero, ~pruned.masks[name]) for name, zero in zeros.items())
        kept = [pruned.model.get_parameter(name)[mask] for name, mask in pruned.masks.items()]
        was = [model.get_parameter(name)[mask] for name, mask in pruned.masks.items()]
        assert torch.equal(torch.cat(kept), torch.cat(was)) is not pruned.moved
        assert pruned.moved is (method in ("movement", "ior", "dss"))
    if METHODS[method].allocation in ("global", "per_layer"):
        assert [pruned.masks.sparsity for pruned in found] == pytest.approx([0.2, 0.5], abs=1e-3)


def test_raw_masks_that_were_not_reached_are_cut_from_the_ranking():
    config = PruneConfig(steps=40, target_sparsity=0.7, average=0.5, stop_at=0.3)
    found = list(prune(make_model("convolutional"), data(), "dap", [0.2, 0.6], config=config, raw=True))
    made = [(pruned.wished, pruned.raw, pruned.allocation) for pruned in found]
    assert made == [("0.2", False, "path"), ("0.2", True, "path"), ("0.6", False, "global"), ("0.6", True, "global")]
    assert [pruned.masks.sparsity for pruned in found] == pytest.approx([0.2, 0.2, 0.6, 0.6], abs=1e-3)
    assert found[2].masks != found[3].masks


def test_the_control_cuts_nothing_and_trains_on():
    model = make_model("convolutional")
    (found,) = prune(model, data(), "control", config=CONFIG, train=TrainConfig(learning_rate=1e-2))
    assert (found.wished, found.masks.sparsity, found.moved) == ("0.0", 0.0, True)
    for wish in ({"sparsities": [0.5]}, {"allocation": "2:4"}):
        with pytest.raises(DapError, match="control cuts nothing: leave sparsities and patterns out"):
            prune(model, data(), "control", **wish)


def test_recalibrated_norms_are_those_of_the_sparse_model():
    model, sources = make_model("convolutional"), data(batches=3)
    (plain,) = prune(model, sources, "magnitude", [0.5])
    (found,) = prune(model, sources, "magnitude", [0.5], recalibrated=True)
    assert (found.masks, found.moved, plain.moved) == (plain.masks, True, False)
    parameters = zip(found.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in parameters)
    # The first norm sees what the sparse first convolution makes of the images.
    batches = [torch.cat([inputs for inputs, _ in batch.values()]) for batch in sources.stream(torch.device("cpu"))]
    seen = [plain.model[0](inputs).mean((0, 2, 3)) for inputs in batches]
    assert torch.allclose(found.model.get_buffer("1.running_mean"), torch.stack(seen).mean(0), atol=1e-5)
    assert not found.model.training
    with pytest.raises(DapError, match="no norm layers that keep statistics"):
        prune(make_model("tied"), sources, "magnitude", [0.5], recalibrated=True)


def test_any_method_can_be_fine_tuned_and_any_left_as_it_is():
    model = make_model("convolutional")
    (tuned,) = prune(model, data(), "magnitude", [0.5], finetuned=True, train=TrainConfig(steps=3, learning_rate=1e-2))
    (plain,) = prune(model, data(), "magnitude", [0.5])
    assert tuned.masks == plain.masks
    assert (tuned.moved, plain.moved) == (True, False)
    (dss,) = prune(model, data(), "dss", [0.5], finetuned=False)
    assert not dss.moved


def test_fine_tuning_takes_as_many_steps_as_mask_learning():
    steps = []
    data_ = data(on_step=lambda news: steps.append(news) if "fine-tuning" in news.stage else None)
    list(prune(make_model("tied"), data_, "magnitude", [0.5], finetuned=True, config=CONFIG))
    assert [news.step for news in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0].stage == "fine-tuning at 0.5"
    assert steps[0].steps == 6


def test_mask_learning_gives_its_snapshots_or_an_exact_cut_of_its_ranking():
    config = PruneConfig(steps=40, target_sparsity=0.7, alpha=1.0)
    model = make_model("convolutional")
    for pruned in prune(model, data(), "dap", [0.3, 0.5], config=config):
        assert pruned.allocation == "path"
        assert pruned.masks.kept == keep_count(pruned.masks.total, float(pruned.wished))
    (exact,) = prune(model, data(), "dap", [0.5], allocation="per_layer", config=config)
    assert exact.masks.sparsity == 0.5
    (unreached,) = prune(model, data(), "dap", [0.5], config=CONFIG)  # six steps are too few
    assert (unreached.allocation, unreached.masks.sparsity) == ("global", 0.5)


def test_patterns():
    (pruned,) = prune(make_model("convolutional"), data(), "wanda", allocation="2:4")
    assert pruned.wished == "2:4"
    assert pruned.masks["9.weight"].view(3, 3, 4).sum(2).eq(2).all()


@pytest.mark.parametrize("allocation", ["channels", "global_channels"])
def test_channels_spare_the_head_wherever_it_is_and_transposed_convolutions(allocation):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 4, 1), nn.Conv2d(4, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 3),
    )  # fmt: skip
    (pruned,) = prune(model, data(), "taylor", [0.2], allocation=allocation)
    assert pruned.masks["5.weight"].all()
    assert pruned.masks["1.weight"].all()
    assert not pruned.masks["2.weight"].all()
    for name in ("0.weight", "2.weight"):
        rows = pruned.masks[name].flatten(1)
        assert torch.equal(rows.any(1), rows.all(1))


def test_what_is_there_is_not_made_again():
    seen = []
    found = prune(make_model("tied"), data(on_step=seen.append), "taylor", [0.2, 0.5], skip={"0.2": ..., "0.5": ...})
    assert list(found) == []
    assert seen == []
    assert [pruned.wished for pruned in prune(make_model("tied"), data(), "taylor", [0.2, 0.5], skip={"0.2"})] == [
        "0.5"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "luck"}, "there is no method 'luck'; choose one of control, random"),
        ({"method": "taylor", "allocation": "path"}, "there is no allocation 'path' for taylor; choose one of global"),
        ({"method": "dap", "allocation": "x"}, "choose one of global, per_layer, erk, .*, flops, .*, path, N:M"),
        (
            {"method": "ior", "allocation": "erk"},
            "ior scores whole channels: choose allocation channels, .*, flops",
        ),
        ({"method": "ior", "allocation": "2:4"}, "ior scores whole channels"),
        ({"method": "taylor", "sparsities": [1.5]}, "sparsity is 1.5; it is a share between 0 and 1"),
        ({"method": "taylor", "sparsities": [0.5], "allocation": "2:4"}, "the pattern 2:4 sets the sparsity"),
    ],
)
def test_wrong_wishes_are_refused_before_anything_is_done(arguments, message):
    with pytest.raises(DapError, match=message):
        prune(make_model("tied"), data(), **arguments)


def test_a_sparsity_that_is_missed_by_far_is_told():
    wide = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 200), nn.Linear(200, 3))
    with pytest.warns(UserWarning, match=r"a sparsity of 0.5 was asked for, and 0.0\d+ is reached: 3 layers are kept"):
        list(prune(wide, data(), "dss", [0.5], finetuned=False))


def test_patterns_spare_transposed_convolutions():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 3), nn.Flatten(), nn.Linear(512, 3))
    (pruned,) = prune(model, data(), "magnitude", allocation="2:4")
    assert pruned.masks["1.weight"].all()
    assert pruned.masks["3.weight"].float().mean() == 0.5


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.whole])
@pytest.mark.parametrize("allocation", ["flops", "flops_uniform"])
def test_every_method_cuts_whole_channels_to_a_share_of_flops(method, allocation):
    model = create_classifier("small_resnet", 3)
    images = {domain: TensorDataset(torch.randn(8, 3, 16, 16), torch.randint(3, (8,))) for domain in ("a", "b")}
    found = prune(
        model.eval(),
        Calibration(images, batches=1, batch_size=4),
        method,
        [0.3, 0.5],
        allocation=allocation,
        finetuned=False,
        config=PruneConfig(steps=4, target_sparsity=0.6),
        train=TrainConfig(steps=2),
    )
    for wish, pruned in zip((0.3, 0.5), found, strict=True):
        assert pruned.allocation == allocation
        assert pruned.flops is not None
        assert 0.6 - wish < pruned.flops <= 1 - wish
        small = remove_channels(pruned.model, pruned.masks).eval()
        inputs = images["a"].tensors[0]
        torch.testing.assert_close(small(inputs), pruned.model.eval()(inputs), atol=1e-4, rtol=1e-4)


def test_channels_are_learnt_as_far_as_is_asked():
    with pytest.raises(DapError, match=r"mask learning ends at target_sparsity=0.75: raise it to reach 0.8"):
        prune(create_classifier("small_resnet", 3), data(), "dap", [0.8], allocation="flops")


def test_channels_that_are_cut_stay_absent_when_training_goes_on():
    model = create_classifier("small_resnet", 3)
    images = {domain: TensorDataset(torch.randn(8, 3, 16, 16), torch.randint(3, (8,))) for domain in ("a", "b")}
    options = {"allocation": "flops", "finetuned": True, "train": TrainConfig(3, 0.01, freeze_norms=False)}
    (pruned,) = prune(model, Calibration(images, batches=1, batch_size=4), "taylor", [0.5], **options)
    assert pruned.moved
    inputs = images["a"].tensors[0]
    small = remove_channels(pruned.model, pruned.masks).eval()
    torch.testing.assert_close(small(inputs), pruned.model.eval()(inputs), atol=1e-4, rtol=1e-4)
