"""Every kind of image PIL reads, as DomainBed would see it; every kind of damage, as an error."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_suites import encoded, picture

from dap.data.decoding import decode
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision import transforms  # noqa: E402
from torchvision.datasets.folder import pil_loader  # noqa: E402


def sixteen_bits() -> Image.Image:
    return Image.fromarray(np.linspace(0, 65535, 280).reshape(14, 20).astype(np.uint16))


def turned() -> tuple[Image.Image, dict[str, object]]:
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me by 90 degrees", which DomainBed does not do
    return picture(0), {"exif": exif}


KINDS = {
    "rgb.png": lambda: (picture(0), {}),
    "rgb.jpg": lambda: (picture(0), {}),
    "rgb.webp": lambda: (picture(0), {}),
    "rgb.tif": lambda: (picture(0), {}),
    "rgb.bmp": lambda: (picture(0), {}),
    "rgb.ppm": lambda: (picture(0), {}),
    "grey.png": lambda: (picture(0, mode="L"), {}),
    "grey.jpg": lambda: (picture(0, mode="L"), {}),
    "cmyk.jpg": lambda: (picture(0, mode="CMYK"), {}),
    "alpha.png": lambda: (picture(0, mode="RGBA"), {}),
    "one bit.png": lambda: (picture(0, mode="1"), {}),
    "palette.png": lambda: (picture(0, mode="P"), {"transparency": 3}),
    "16 bit.png": lambda: (sixteen_bits(), {}),
    "turned.jpg": turned,
}


@pytest.mark.parametrize("kind", KINDS)
def test_like_domainbeds_eval_transform(kind: str, tmp_path: Path) -> None:
    image, options = KINDS[kind]()
    image.save(tmp_path / kind, **options)
    pixels, size = decode(tmp_path / kind, 32)
    theirs = transforms.Resize((32, 32))(pil_loader(str(tmp_path / kind)))
    assert np.array_equal(pixels, np.asarray(theirs).transpose(2, 0, 1))
    assert size == (14, 20)


def test_palette_with_graded_transparency_needs_no_warning(tmp_path: Path) -> None:
    picture(0, mode="P").save(tmp_path / "p.png", transparency=bytes(range(100)))
    assert decode(tmp_path / "p.png", 16)[0].std() > 0


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff", "bmp"])
def test_truncated(kind: str) -> None:
    whole = encoded(0, kind, width=90, height=80)
    with pytest.raises(Exception):  # noqa: B017 (decoders raise many kinds)
        decode(io.BytesIO(whole[: len(whole) // 2]), 16)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"<html>not found</html>"])
def test_no_image(data: bytes) -> None:
    with pytest.raises(OSError, match="cannot identify"):
        decode(io.BytesIO(data), 16)


def test_decompression_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        decode(io.BytesIO(encoded(0)), 16)
