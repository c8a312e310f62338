import math
from collections.abc import Mapping
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from dap.criteria import magnitude
from dap.errors import DapError
from dap.masks.allocation import (
    ALLOCATIONS,
    apportion,
    channels,
    erdos_renyi_kernel,
    global_channels,
    global_masks,
    keep_count,
    keep_top,
    keep_top_weighted,
    n_of_m,
    per_layer,
)

SHAPES = [(4, 3), (6, 2, 3, 3), (5, 1), (2, 8)]


def few_values(seed: int) -> dict[str, torch.Tensor]:
    """Scores with many ties, in layers of very different height."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layer {index}": torch.randint(0, 4, shape, generator=generator).float() + 3 * (index % 2)
        for index, shape in enumerate(SHAPES)
    }


def plain_order(scores: dict[str, torch.Tensor]) -> list[tuple[float, int, str, int]]:
    """All weights from the best to the worst: a stable sort, the plain way."""
    rows = [
        (-value, layer, name, place)
        for layer, (name, score) in enumerate(scores.items())
        for place, value in enumerate(score.reshape(-1).tolist())
    ]
    return sorted(rows, key=lambda row: (row[0], row[1], row[3]))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_keeps_exactly_the_largest_and_the_first_of_equals(values, data):
    keep = data.draw(st.integers(0, len(values)))
    mask = keep_top(torch.tensor(values, dtype=torch.float32), keep)
    order = sorted(range(len(values)), key=lambda at: (-values[at], at))
    assert mask.nonzero().flatten().tolist() == sorted(order[:keep])


@pytest.mark.parametrize(
    ("total", "sparsity", "keep"), [(10, 0.25, 8), (10, 0.3, 7), (10, 0, 10), (10, 1, 0), (11_170_496, 0.8, 2_234_099)]
)
def test_count(total, sparsity, keep):
    assert keep_count(total, sparsity) == keep


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, float("nan")])
def test_a_sparsity_is_a_share(sparsity):
    with pytest.raises(DapError, match="sparsity is"):
        keep_count(10, sparsity)


@pytest.mark.parametrize("allocate", [*ALLOCATIONS.values(), lambda scores, sparsity: n_of_m(1, 2)(scores)])
def test_nan_scores_are_refused(allocate):
    with pytest.raises(DapError, match="NaN"):
        allocate({"a": torch.tensor([[1.0, math.nan, 0.0], [1.0, 2.0, 3.0]])}, 0.5)


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 2.0, math.inf]), min_size=1, max_size=60), st.data())
def test_a_sample_that_tells_little_or_lies(values, data):
    keep = data.draw(st.integers(0, len(values)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dap.masks.allocation._SAMPLE", data.draw(st.integers(1, 16)))
        mask = keep_top(torch.tensor(values), keep)
    order = sorted(range(len(values)), key=lambda at: (-values[at], at))
    assert mask.nonzero().flatten().tolist() == sorted(order[:keep])


@given(st.integers(0, 10**6), st.floats(0, 0.92))
def test_global_is_a_sort_across_layers(seed, sparsity):
    scores = few_values(seed)
    keep = keep_count(sum(score.numel() for score in scores.values()), sparsity)
    chosen = {(name, place) for _, _, name, place in plain_order(scores)[:keep]}
    masks = global_masks(scores, sparsity, allow_empty=True)
    assert {(name, at) for name, mask in masks.items() for at in mask.flatten().nonzero().flatten().tolist()} == chosen

    # Otherwise every layer keeps its best weight, and the rest of the budget goes to the best of all others.
    best = {name: (name, int(score.reshape(-1).argmax())) for name, score in scores.items()}
    rest = [(name, place) for _, _, name, place in plain_order(scores) if (name, place) != best[name]]
    full = global_masks(scores, sparsity)
    assert {(name, at) for name, mask in full.items() for at in mask.flatten().nonzero().flatten().tolist()} == (
        set(best.values()) | set(rest[: keep - len(best)])
    )
    if all(masks[name].any() for name in masks):
        assert full == masks


def check_rounding(
    counts: Mapping[str, int], parts: Mapping[str, float], caps: Mapping[str, int], total: Fraction, least: int
) -> None:
    """Each count is the rounding, down or up, of its share. The shares are the parts times one factor, within bounds.

    A count c of part p above `least` needs a factor above (c − 1)/p, one below its cap a factor below (c + 1)/p. The
    factor at which the shares add up to `total` must lie between the tightest of these limits, and the sum grows with
    the factor.
    """

    def filled(factor: Fraction) -> Fraction:
        return sum(min(max(Fraction(part) * factor, Fraction(least)), Fraction(caps[n])) for n, part in parts.items())

    assert all(least <= counts[name] <= caps[name] for name in counts)
    total = max(total, Fraction(least * len(parts)))  # where a rounding up alone leaves every layer its least
    assert abs(sum(counts.values()) - total) < 1
    above = [Fraction(count - 1) / Fraction(parts[name]) for name, count in counts.items() if count > least]
    below = [Fraction(count + 1) / Fraction(parts[name]) for name, count in counts.items() if count < caps[name]]
    assert not above or filled(max(above)) < total
    assert not below or filled(min(below)) > total


@given(st.integers(0, 10**6), st.floats(0, 0.97), st.booleans())
@example(seed=0, sparsity=0.25899755917417433, allow_empty=False)
def test_per_layer_is_exact_in_all_and_each_layer_keeps_its_share_rounded(seed, sparsity, allow_empty):
    scores = few_values(seed)
    masks = per_layer(scores, sparsity, allow_empty=allow_empty)
    assert masks.kept == keep_count(masks.total, sparsity)
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    shares = {name: (1 - Fraction(sparsity)) * score.numel() for name, score in scores.items()}
    if allow_empty or min(shares.values()) >= 1:
        assert all(math.floor(share) <= counts[name] <= math.ceil(share) for name, share in shares.items())
    sizes = {name: score.numel() for name, score in scores.items()}
    check_rounding(counts, sizes, sizes, sum(shares.values(), Fraction(0)), int(not allow_empty))
    for name, score in scores.items():
        assert torch.equal(masks[name], keep_top(score.reshape(-1), counts[name]).view(score.shape))


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=6),
    st.floats(0, 1),
    st.sampled_from([per_layer, erdos_renyi_kernel]),
    st.booleans(),
    st.integers(0, 40),
)
@example([[34, 34], [3, 2, 4], [5, 2, 5]], 0.95, erdos_renyi_kernel, False, 0)  # 46.99 for the first: not 48
def test_layers_of_any_shape_keep_their_share_rounded(shapes, sparsity, allocate, allow_empty, whole):
    scores = {str(index): torch.rand(shape) for index, shape in enumerate(shapes)}
    sizes = {name: score.numel() for name, score in scores.items()}
    parts = sizes if allocate is per_layer else {name: sum(score.shape) for name, score in scores.items()}
    if whole:
        scores["whole"] = torch.full((whole,), math.inf)
    total = sum(sizes.values()) + whole
    keep = keep_count(total, sparsity) - whole
    assume(keep >= (0 if allow_empty else len(shapes)))
    masks = allocate(scores, sparsity, allow_empty=allow_empty)
    assert masks.kept == keep + whole
    left = (1 - Fraction(sparsity)) * total - whole
    check_rounding({name: int(masks[name].sum()) for name in sizes}, parts, sizes, left, int(not allow_empty))


def test_erdos_renyi_kernel_by_hand():
    scores = {"conv": torch.rand(16, 8, 3, 3), "linear": torch.rand(10, 16), "wide": torch.rand(64, 64)}
    masks = erdos_renyi_kernel(scores, 0.7)
    # N = 1152 + 160 + 4096 = 5408; 1622.4 are left, 1622 kept. Parts: 30, 26, 128; a unit is 1622.4/184 = 8.817, and
    # 26 units are more than 160: the linear layer is whole. Of the other 1462.4, 30/158 are 277.7, 128/158 are 1184.7.
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"conv": 277, "linear": 160, "wide": 1185}


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.integers(1, 60)), min_size=1, max_size=8), st.integers(0, 1), st.data()
)
def test_apportionment(layers, least, data):
    parts = {str(index): part for index, (part, _) in enumerate(layers)}
    caps = {str(index): cap for index, (_, cap) in enumerate(layers)}
    total = data.draw(st.fractions(least * len(layers), sum(caps.values()), max_denominator=10**6))
    for rounded in (math.floor(total), math.ceil(total)):
        counts = apportion(parts, caps, total, rounded, least)
        assert sum(counts.values()) == rounded
        check_rounding(counts, parts, caps, total, least)


def test_the_largest_fractions_are_rounded_up_and_the_first_of_equals():
    shares = {"a": 2.25, "b": 1.5, "c": 3.75, "d": 0.5}
    caps = dict.fromkeys(shares, 9)
    assert apportion(shares, caps, Fraction(8), 8) == {"a": 2, "b": 2, "c": 4, "d": 0}


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 6))
def test_n_of_m_by_brute_force(seed, n, m):
    n = min(n, m)
    generator = torch.Generator().manual_seed(seed)
    scores = {
        "linear": torch.randint(0, 4, (3, 7), generator=generator).float(),
        "conv": torch.rand(2, 5, 3, 3, generator=generator),
    }
    masks = n_of_m(n, m)(scores)
    for name, score in scores.items():
        rows = score.flatten(2) if score.ndim > 2 else score.unsqueeze(2)
        kept = masks[name].flatten(2) if score.ndim > 2 else masks[name].unsqueeze(2)
        for out in range(len(rows)):
            for place in range(rows.shape[2]):
                for start in range(0, rows.shape[1], m):
                    group = rows[out, start : start + m, place].tolist()
                    best = sorted(range(len(group)), key=lambda at: (-group[at], at))[:n]
                    assert kept[out, start : start + m, place].nonzero().flatten().tolist() == sorted(best)


def test_two_of_four_suits_the_hardware():
    """Where inputs divide by four, exactly half is cut, in every run of four along the input."""
    masks = n_of_m(2, 4)({"weight": torch.rand(8, 16)})
    assert masks["weight"].view(8, 4, 4).sum(2).eq(2).all()
    with pytest.raises(DapError, match="the pattern 5:4 keeps 5 of 4"):
        n_of_m(5, 4)


@given(st.integers(0, 10**6), st.floats(0, 0.95))
def test_channels_are_whole_and_counted_in_each_layer(seed, sparsity):
    scores = few_values(seed)
    for name, mask in channels(scores, sparsity).items():
        rows = mask.flatten(1)
        assert torch.equal(rows.all(1), rows.any(1))
        kept = max(1, keep_count(len(rows), sparsity))
        means = scores[name].flatten(1).mean(1)
        assert torch.equal(rows[:, 0], keep_top(means, kept))


@given(st.integers(0, 10**6), st.floats(0, 0.7))
def test_global_channels_cut_just_enough(seed, sparsity):
    scores = few_values(seed)
    masks = global_channels(scores, sparsity)
    ranks = {name: score.flatten(1).mean(1) for name, score in scores.items()}
    assert masks.kept <= keep_count(masks.total, sparsity)
    cut = [
        (float(ranks[name][row]), mask[row].numel())
        for name, mask in masks.items()
        for row in range(len(mask))
        if not mask[row].any()
    ]
    kept = [
        float(ranks[name][row])
        for name, mask in masks.items()
        for row in range(len(mask))
        if mask[row].any() and row != int(ranks[name].argmax())
    ]
    assert all(mask.any() for mask in masks.values())
    if cut:
        best = max(cut)[0]
        assert not kept or best <= min(kept)
        # Any one that ties with the best of the cut, given back, would be one too many.
        assert masks.kept + max(size for rank, size in cut if rank == best) > keep_count(masks.total, sparsity)


def test_weighted():
    scores, sizes = torch.tensor([5.0, 4.0, 3.0, 2.0]), torch.tensor([2, 3, 2, 3])
    assert keep_top_weighted(scores, sizes, 7).tolist() == [True, True, True, False]
    assert keep_top_weighted(scores, sizes, 6).tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_infinite_scores_keep_a_layer_whole(name):
    scores = few_values(0) | {"head": torch.full((1,), math.inf).expand(3, 4)}
    masks = ALLOCATIONS[name](scores, 0.5)
    assert masks["head"].all()
    assert list(masks) == list(scores)
    if "channels" not in name:
        assert masks.kept == keep_count(masks.total, 0.5)
    with pytest.raises(DapError, match="there is no layer to cut"):
        ALLOCATIONS[name]({"head": scores["head"]}, 0.5)


@pytest.mark.parametrize("name", ["global", "per_layer", "erk", "global_channels"])
def test_a_layer_is_emptied_only_if_asked(name):
    scores = {"low": torch.zeros(2, 2), "high": torch.ones(10, 10)}
    for sparsity in (0.5, 0.8):
        assert all(mask.any() for mask in ALLOCATIONS[name](scores, sparsity).values())
    with pytest.raises(DapError, match=r"sparsity 0.99 would not leave every layer a (weight|channel): lower it"):
        ALLOCATIONS[name](scores, 0.99)
    assert ALLOCATIONS[name](scores, 1.0, allow_empty=True).kept == 0
    assert not global_masks(scores, 0.5, allow_empty=True)["low"].any()
    with pytest.raises(DapError, match="out of reach: whole … are kept whole"):
        ALLOCATIONS[name](scores | {"whole": torch.full((99, 9), math.inf)}, 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_scores_of_any_precision(dtype):
    scores = {"a": torch.rand(40, 10).to(dtype), "b": torch.rand(30)}
    masks = global_masks(scores, 0.4)
    assert masks.kept == keep_count(430, 0.4)
    kept = min(float(score.masked_fill(~masks[name], 9).min()) for name, score in scores.items())
    cut = max(float(score.masked_fill(masks[name], -1).max()) for name, score in scores.items())
    assert cut <= kept


@pytest.mark.parametrize("sparsity", [0.2, 0.5, 0.8, 0.95])
def test_magnitude_equals_torchs_own_mask_for_mask(sparsity):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, groups=4), nn.Flatten(), nn.Linear(9, 7))
    ours = global_masks(magnitude(model), sparsity, allow_empty=True)  # as torch does, at 95 %
    layers = [(module, "weight") for module in model if isinstance(module, nn.Conv2d | nn.Linear)]
    prune.global_unstructured(layers, prune.L1Unstructured, amount=sparsity)
    for name, module in model.named_modules():
        if f"{name}.weight" in ours:
            assert torch.equal(ours[f"{name}.weight"], module.get_buffer("weight_mask").bool())
