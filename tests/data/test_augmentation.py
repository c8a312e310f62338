import numpy as np
import pytest
import torch
from PIL import Image

from dap.data import augmentation
from dap.data.augmentation import THREADED, augment, normalise, sample_jitter
from dap.data.draws import uniforms
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision import transforms  # noqa: E402

NORMALISE = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.fixture
def images() -> np.ndarray:
    coarse = torch.rand(12, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, (40, 40), mode="bicubic", align_corners=False)
    return (smooth.clamp(0, 1) * 255).byte().numpy()


def run(images: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    out = np.empty(images.shape, np.float32)
    augment(images, np.tile([50, 70], (len(images), 1)), seeds, out)
    return out


def test_normalise_like_torchvision(images: np.ndarray) -> None:
    out = np.empty(images.shape, np.float32)
    normalise(images, out)
    expected = torch.stack([NORMALISE(transforms.ToTensor()(image.transpose(1, 2, 0))) for image in images])
    torch.testing.assert_close(torch.from_numpy(out), expected, atol=2e-6, rtol=0)


def test_an_image_depends_on_its_own_seed_only(images: np.ndarray) -> None:
    seeds = np.arange(12, dtype=np.uint64) + np.uint64(2**63)
    together = run(images, seeds)
    for place in range(12):
        alone = run(images[place : place + 1], seeds[place : place + 1])[0]
        assert np.array_equal(alone, together[place])
    assert np.array_equal(run(images[::-1], seeds[::-1])[::-1], together)
    same = run(np.repeat(images[:1], 12, 0), seeds)
    assert len(np.unique(same.reshape(12, -1)[:, :50], axis=0)) == 12


def test_rates_of_flips_and_greys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "STRENGTH", 0.0)
    # Left half dark and right half light, in red only: shows a flip and greyness.
    image = np.zeros((3, 8, 8), np.uint8)
    image[0, :, 4:] = 200
    out = np.empty((3000, 3, 8, 8), np.float32)
    augment(np.repeat(image[None], 3000, 0), np.tile([80, 80], (3000, 1)), np.arange(3000, dtype=np.uint64), out)
    back = out * augmentation.STD + augmentation.MEAN
    flipped, grey = back[:, 0, :, 0].mean(1) > back[:, 0, :, -1].mean(1), back[:, 1].max((1, 2)) > 0.01
    assert flipped.mean() == pytest.approx(0.5, abs=0.04)
    assert grey.mean() == pytest.approx(0.1, abs=0.025)
    assert abs(np.corrcoef(flipped, grey)[0, 1]) < 0.06


def test_orders_and_strengths_of_the_jitter() -> None:
    orders, factors = sample_jitter(uniforms(np.arange(3000, dtype=np.uint64), 8))
    factors = np.array(factors)
    different, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(different) == 24
    assert counts.min() > 85
    assert counts.max() < 170
    centres = [1, 1, 1, 0]
    np.testing.assert_allclose(factors.min(0), np.subtract(centres, 0.3), atol=0.002)
    np.testing.assert_allclose(factors.max(0), np.add(centres, 0.3), atol=0.002)
    np.testing.assert_allclose(factors.std(0), 0.6 / 12**0.5, rtol=0.04)


def test_statistics_of_the_whole_transform(images: np.ndarray) -> None:
    """Against DomainBed's transform on PIL images: the mean and the spread of each channel over many draws."""
    image = images[0]
    theirs_of = transforms.Compose(
        [
            transforms.RandomResizedCrop(40, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
            NORMALISE,
        ]
    )
    torch.manual_seed(0)
    picture = Image.fromarray(image.transpose(1, 2, 0))
    theirs = torch.stack([theirs_of(picture) for _ in range(1500)]).numpy()
    ours = np.empty((1500, 3, 40, 40), np.float32)
    augment(np.repeat(image[None], 1500, 0), np.tile([40, 40], (1500, 1)), np.arange(1500, dtype=np.uint64), ours)
    for of in (np.mean, np.std):
        np.testing.assert_allclose(of(ours, (0, 2, 3)), of(theirs, (0, 2, 3)), atol=0.04)
        np.testing.assert_allclose(of(ours, 0), of(theirs, 0), atol=0.2)


def test_brightest_and_darkest_stay_in_range(images: np.ndarray) -> None:
    black_and_white = np.stack([np.zeros_like(images[0]), np.full_like(images[0], 255)]).repeat(40, 0)
    out = run(black_and_white, np.arange(80, dtype=np.uint64))
    low, high = np.empty((2, 3, 40, 40), np.float32), None
    normalise(black_and_white[[0, -1]], low)
    low, high = low.min((2, 3))[0], low.max((2, 3))[1]
    assert (out.min((0, 2, 3)) >= low - 1e-4).all()
    assert (out.max((0, 2, 3)) <= high + 1e-4).all()


def test_uniforms_are_uniform_and_independent() -> None:
    drawn = uniforms(np.arange(20_000, dtype=np.uint64), 8)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    np.testing.assert_allclose(drawn.mean(0), 0.5, atol=0.01)
    counts = np.stack([np.histogram(column, 10, (0, 1))[0] for column in drawn.T])
    assert (((counts - 2000) ** 2 / 2000).sum(1) < 30).all()  # χ² with 9 degrees of freedom: 30 is one in 2,000
    assert np.abs(np.corrcoef(drawn.T) - np.eye(8)).max() < 0.03
    neighbours = [np.corrcoef(column[:-1], column[1:])[0, 1] for column in drawn.T]
    assert np.abs(neighbours).max() < 0.03


def test_uniforms_are_the_published_generators() -> None:
    # SplitMix64 started from 1234567 gives these, as its authors' C code does.
    state = np.uint64(1234567)
    from dap.data.draws import GOLDEN, _mix

    with np.errstate(over="ignore"):
        drawn = [int(_mix(np.array([state + np.uint64(step) * GOLDEN]))[0]) for step in (1, 2)]
    assert drawn == [6457827717110365317, 3203168211198807973]


@pytest.mark.parametrize("side", [THREADED - 1, THREADED])
def test_an_image_is_changed_alike_in_any_company(side: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, side, side), np.uint8)
    sizes, seeds = np.full((5, 2), 300, np.int32), np.arange(5, dtype=np.uint64)
    together, alone = np.empty(images.shape, np.float32), np.empty((1, 3, side, side), np.float32)
    augment(images, sizes, seeds, together)
    for place in range(5):
        here = slice(place, place + 1)
        augment(images[here], sizes[here], seeds[here], alone)
        assert np.array_equal(together[here], alone)
