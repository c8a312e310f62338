"""The built-in suite: real handwritten digits in four looks, so that everything runs offline and from nothing.

The digits are the 1797 that come with scikit-learn. Each of them belongs to one domain only: otherwise the unseen
domain would show shapes that were seen in another look, and would measure memory instead of generalisation.
"""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from dap.data.cache import cache_folder
from dap.runtime.files import write_atomic

DOMAINS = ("outline", "plain", "rotated", "textured")

# Part of the cache's file name: raise it with any change to what is drawn.
RECIPE = 1
SEED = 20240

SIDE = 32  # of an image, in pixels
GLYPH = 24  # of the digit in it: leaves room for turning
_PARTS = ("images", "labels")
_NAMES = {f"{domain}.{part}" for domain in DOMAINS for part in _PARTS}


def digits(cache: Path | None = None) -> dict[str, TensorDataset]:
    """The suite: domain name to (images [n, 3, 32, 32], float32 bytes / 255 and so in [0, 1]; labels [n], int64).

    Images are kept in the folder `cache`, else `$DAP_CACHE`, `$XDG_CACHE_HOME/dap` or `~/.cache/dap`.

    >>> images, labels = digits()["plain"].tensors
    >>> images.shape, labels.shape
    (torch.Size([449, 3, 32, 32]), torch.Size([449]))
    """
    path = (cache or cache_folder()) / f"digits-{RECIPE}.safetensors"
    tensors = _read(path)
    if tensors is None:
        tensors = _build()
        _write(path, tensors)
    return {
        domain: TensorDataset(tensors[f"{domain}.images"].float() / 255, tensors[f"{domain}.labels"].long())
        for domain in DOMAINS
    }


def partition(labels: Tensor, generator: Generator) -> dict[str, Tensor]:
    """Deals out each class in turn, like cards: labels [n] to {domain: indices}, classes balanced in each.

    >>> partition(torch.zeros(8), torch.Generator())["plain"].shape
    torch.Size([2])
    """
    shuffled = torch.randperm(len(labels), generator=generator, device="cpu")
    by_class = shuffled[torch.sort(labels[shuffled], stable=True).indices]
    return {domain: by_class[place :: len(DOMAINS)] for place, domain in enumerate(DOMAINS)}


def plain(glyphs: Tensor, generator: Generator) -> Tensor:
    """Black ink on white paper: glyphs [n, 1, 32, 32], with 1 for ink, to images [n, 3, 32, 32]."""
    return (1 - glyphs).expand(-1, 3, -1, -1)


def outline(glyphs: Tensor, generator: Generator) -> Tensor:
    """The edges only, black on white: glyphs [n, 1, 32, 32] to images [n, 3, 32, 32]."""
    # What a 3×3 brush adds to the digit, less what it takes away.
    grown, shrunk = F.max_pool2d(glyphs, 3, 1, 1), -F.max_pool2d(-glyphs, 3, 1, 1)
    return (1 - (2 * (grown - shrunk)).clamp(0, 1)).expand(-1, 3, -1, -1)


def rotated(glyphs: Tensor, generator: Generator) -> Tensor:
    """White on black, turned by 25 to 40 degrees either way: glyphs [n, 1, 32, 32] to images [n, 3, 32, 32].

    Far enough for a shift, and not so far that a 6 meets a 9.
    """
    n = len(glyphs)
    side = torch.randint(0, 2, (n,), generator=generator, device="cpu") * 2 - 1
    angle = side * torch.deg2rad(25 + 15 * torch.rand(n, generator=generator, device="cpu"))
    zero = torch.zeros(n, device="cpu")
    rows = [torch.stack([angle.cos(), -angle.sin(), zero], 1), torch.stack([angle.sin(), angle.cos(), zero], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(glyphs.shape), align_corners=False)
    return F.grid_sample(glyphs, grid, align_corners=False).expand(-1, 3, -1, -1)


def textured(glyphs: Tensor, generator: Generator) -> Tensor:
    """A coloured digit on a coloured texture, after MNIST-M: glyphs [n, 1, 32, 32] to images [n, 3, 32, 32]."""
    n = len(glyphs)
    # Ink lighter than its ground in every channel: colours vary freely, but no digit is lost in its background.
    ground, ink = (0.2 * torch.rand(n, 3, 1, 1, generator=generator, device="cpu") + low for low in (0.0, 0.8))
    coarse, fine = (
        F.interpolate(torch.randn(n, 3, size, size, generator=generator, device="cpu"), SIDE, mode="bicubic")
        for size in (4, 12)
    )
    return (ground + (ink - ground) * glyphs + 0.1 * coarse + 0.05 * fine).clamp(0, 1)


# Two domains are dark on light and two light on dark, so that an unseen domain differs in more than one way.
LOOKS = {"outline": outline, "plain": plain, "rotated": rotated, "textured": textured}


def _build() -> dict[str, Tensor]:
    scans, labels = _scans()
    generator = torch.Generator("cpu").manual_seed(SEED)
    tensors: dict[str, Tensor] = {}
    for domain, indices in partition(labels, generator).items():
        images = LOOKS[domain](_glyphs(scans[indices]), generator)
        tensors[f"{domain}.images"] = (images * 255).round().to(torch.uint8)
        tensors[f"{domain}.labels"] = labels[indices].to(torch.uint8)
    return tensors


def _scans() -> tuple[Tensor, Tensor]:
    """All handwritten digits, [1797, 1, 8, 8] with 1 for ink, and their labels [1797]."""
    # Slow to import, and needed only when there is no cache.
    from sklearn.datasets import load_digits

    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    return torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16, torch.from_numpy(labels)


def _glyphs(scans: Tensor) -> Tensor:
    """Scans [n, 1, 8, 8] enlarged and centred, [n, 1, 32, 32], with the edge of the ink made crisp."""
    large = F.interpolate(scans, GLYPH, mode="bicubic", align_corners=False)
    crisp = (2.0 * large - 0.4).clamp(0, 1)
    return F.pad(crisp, [(SIDE - GLYPH) // 2] * 4)


def _digest(tensors: dict[str, Tensor]) -> Tensor:
    return torch.tensor(list(sha256(save(tensors)).digest()), dtype=torch.uint8, device="cpu")


def _read(path: Path) -> dict[str, Tensor] | None:
    """The cached images, or nothing if they are not there or not whole."""
    try:
        tensors = load(path.read_bytes())
        # The format has no checksum of its own.
        whole = torch.equal(tensors.pop("sha256"), _digest(tensors)) and set(tensors) == _NAMES
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
        return None
    return tensors if whole and all(_plausible(tensors, domain) for domain in DOMAINS) else None


def _plausible(tensors: dict[str, Tensor], domain: str) -> bool:
    images, labels = (tensors[f"{domain}.{part}"] for part in _PARTS)
    fits = labels.ndim == 1 and labels.numel() > 0 and images.shape == (len(labels), 3, SIDE, SIDE)
    return fits and images.dtype == labels.dtype == torch.uint8 and bool((labels < 10).all())


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    # A cache that cannot be written costs a second each time, no more.
    with suppress(OSError):
        write_atomic(path, save({**tensors, "sha256": _digest(tensors)}))
