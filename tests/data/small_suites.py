"""Small images on disk, and caches of them, for the tests here."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from dap.data.listing import Listing, list_files


def picture(seed: int, width: int = 20, height: int = 14, mode: str = "RGB") -> Image.Image:
    """Smooth colours, so that JPEG leaves them almost alone."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(seed: int, kind: str = "png", **options: int) -> bytes:
    file = io.BytesIO()
    picture(seed, **options).save(file, kind)
    return file.getvalue()


def make_folder(folder: Path, images: dict[str, dict[str, int]]) -> Path:
    """{domain: {class: number of images}} as <domain>/<class>/<number>.png."""
    seed = 0
    for domain, classes in images.items():
        for name, count in classes.items():
            (folder / domain / name).mkdir(parents=True)
            for number in range(count):
                (folder / domain / name / f"{number}.png").write_bytes(encoded(seed))
                seed += 1
    return folder


def make_listing(folder: Path, count: int) -> Listing:
    for number in range(count):
        (folder / f"{number:03}.png").write_bytes(encoded(number, width=8 + number))
    return list_files(folder, [f"{number:03}.png" for number in range(count)], np.arange(count) % 3)
