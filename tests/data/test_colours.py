"""Each change of colour against torchvision's on float tensors."""

import numpy as np
import pytest
import torch

from dap.data import colours
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision.transforms import functional as F  # noqa: E402


@pytest.fixture
def image() -> np.ndarray:
    """Random colours, with black, white, greys and pure colours among them."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 24, 20)).astype(np.float32)
    pixels[:, 0] = np.linspace(0, 255, 20)
    pixels[:, 1, :8] = np.array(np.meshgrid([0, 255], [0, 255], [0, 255])).reshape(3, 8)
    return pixels


def theirs(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image / 255)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.17, 1.3])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_like_torchvision(image: np.ndarray, name: str, factor: float) -> None:
    expected = getattr(F, f"adjust_{name}")(theirs(image), factor)
    getattr(colours, name)(image, factor)
    torch.testing.assert_close(theirs(image), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shift", [-0.5, -0.3, -0.1, 0.0, 1e-3, 0.21, 0.3, 0.5])
def test_hue_like_torchvision(image: np.ndarray, shift: float) -> None:
    expected = F.adjust_hue(theirs(image), shift)
    colours.hue(image, shift)
    torch.testing.assert_close(theirs(image), expected, atol=1e-5, rtol=0)


def test_hue_turns_red_into_green_and_back() -> None:
    image = np.zeros((3, 1, 1), np.float32)
    image[0] = 200
    colours.hue(image, 1 / 3)
    np.testing.assert_allclose(image.ravel(), [0, 200, 0], atol=1e-4)
    colours.hue(image, -1 / 3)
    np.testing.assert_allclose(image.ravel(), [200, 0, 0], atol=1e-4)


def test_greyscale_like_torchvision(image: np.ndarray) -> None:
    expected = F.rgb_to_grayscale(theirs(image), 3)
    colours.greyscale(image)
    torch.testing.assert_close(theirs(image), expected, atol=1e-6, rtol=0)
