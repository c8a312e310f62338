import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from dap.data import augmentation
from dap.data.augmentation import (
    AREA,
    DRAWS,
    GOLDEN,
    RATIO,
    THREADED,
    _mix,
    augment,
    crop,
    normalise,
    sample_boxes,
    sample_jitter,
    sample_points,
    uniforms,
)
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision import transforms  # noqa: E402
from torchvision.transforms import functional as F  # noqa: E402

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


# ---- crops


def cut(image: np.ndarray, box: tuple[int, ...], size: tuple[int, int], flip: bool) -> np.ndarray:
    indices, between = sample_points(np.array([box], float), np.array([size]), np.array([flip]), image.shape[-1])
    return crop(image, indices[0], between[0]).transpose(0, 2, 1)


def boxes(height: int, width: int, count: int = 4000) -> np.ndarray:
    sizes = np.tile([height, width], (count, 1))
    return sample_boxes(uniforms(np.arange(count, dtype=np.uint64), DRAWS), sizes)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 40, 40), (3, 5, 30, 33), (0, 7, 40, 33), (10, 0, 30, 40)])
def test_whole_pixels_are_cut_and_enlarged_as_torch_does(box: tuple[int, ...], flip: bool) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 40, 40), np.uint8)
    ours = cut(image, box, (40, 40), flip)
    top, left, height, width = box
    part = torch.from_numpy(image[:, top : top + height, left : left + width]).float()
    expected = interpolate(part[None], (40, 40), mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(torch.from_numpy(ours), expected.flip(-1) if flip else expected, atol=1e-3, rtol=0)


def test_box_is_in_the_originals_geometry() -> None:
    """The left half of an original of 60 × 200 is the left half of its square."""
    image = np.random.default_rng(0).integers(0, 256, (3, 32, 32), np.uint8)
    wide = cut(image, (0, 0, 60, 100), (60, 200), False)
    square = cut(image, (0, 0, 32, 16), (32, 32), False)
    np.testing.assert_allclose(wide, square, atol=1e-3)


def test_one_pixel_is_enough() -> None:
    image = np.full((3, 1, 1), 7, np.uint8)
    assert cut(image, (2, 3, 5, 5), (9, 9), True).tolist() == [[[7]], [[7]], [[7]]]


@pytest.mark.parametrize("size", [(160, 160), (120, 300), (333, 190)])
def test_boxes_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    theirs = np.array(
        [transforms.RandomResizedCrop.get_params(torch.empty(3, *size), list(AREA), list(RATIO)) for _ in range(4000)]
    )
    ours = boxes(*size)
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        # In pixels: 4,000 draws each leave about a pixel of noise here.
        np.testing.assert_allclose(np.quantile(ours, share, 0), np.quantile(theirs, share, 0), atol=0.02 * max(size))
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.015 * max(size))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (160, 160), (90, 1000), (1000, 90)])
def test_boxes_lie_inside(size: tuple[int, int]) -> None:
    drawn = boxes(*size)
    assert (drawn[:, :2] >= 0).all()
    assert (drawn[:, 2:] >= 1).all()
    assert (drawn[:, :2] + drawn[:, 2:] <= size).all()
    assert (drawn == np.rint(drawn)).all()


@pytest.mark.parametrize("size", [(100, 1000), (1000, 100)])
def test_no_try_fits_a_very_long_image(size: tuple[int, int]) -> None:
    """Then torchvision takes the central box of the nearest shape."""
    theirs = transforms.RandomResizedCrop.get_params(torch.empty(3, *size), list(AREA), list(RATIO))
    assert (boxes(*size, 10) == theirs).all()


# ---- colours, against torchvision's on float tensors


@pytest.fixture
def image() -> np.ndarray:
    """Random colours, with black, white, greys and pure colours among them."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 24, 20)).astype(np.float32)
    pixels[:, 0] = np.linspace(0, 255, 20)
    pixels[:, 1, :8] = np.array(np.meshgrid([0, 255], [0, 255], [0, 255])).reshape(3, 8)
    return pixels


def scaled(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image / 255)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.17, 1.3])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colours_like_torchvision(image: np.ndarray, name: str, factor: float) -> None:
    expected = getattr(F, f"adjust_{name}")(scaled(image), factor)
    getattr(augmentation, name)(image, factor)
    torch.testing.assert_close(scaled(image), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shift", [-0.5, -0.3, -0.1, 0.0, 1e-3, 0.21, 0.3, 0.5])
def test_hue_like_torchvision(image: np.ndarray, shift: float) -> None:
    expected = F.adjust_hue(scaled(image), shift)
    augmentation.hue(image, shift)
    torch.testing.assert_close(scaled(image), expected, atol=1e-5, rtol=0)


def test_hue_turns_red_into_green_and_back() -> None:
    image = np.zeros((3, 1, 1), np.float32)
    image[0] = 200
    augmentation.hue(image, 1 / 3)
    np.testing.assert_allclose(image.ravel(), [0, 200, 0], atol=1e-4)
    augmentation.hue(image, -1 / 3)
    np.testing.assert_allclose(image.ravel(), [200, 0, 0], atol=1e-4)


def test_greyscale_like_torchvision(image: np.ndarray) -> None:
    expected = F.rgb_to_grayscale(scaled(image), 3)
    augmentation.greyscale(image)
    torch.testing.assert_close(scaled(image), expected, atol=1e-6, rtol=0)
