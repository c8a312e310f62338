import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from dap.data.crops import DRAWS, RATIO, SCALE, crop, sample_boxes, sample_points
from dap.data.draws import uniforms
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision.transforms import RandomResizedCrop  # noqa: E402


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
        [RandomResizedCrop.get_params(torch.empty(3, *size), list(SCALE), list(RATIO)) for _ in range(4000)]
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
    theirs = RandomResizedCrop.get_params(torch.empty(3, *size), list(SCALE), list(RATIO))
    assert (boxes(*size, 10) == theirs).all()
