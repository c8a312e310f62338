"""Real images and weights for the experiments here: PACS, and ResNets with ImageNet weights."""

import os
from pathlib import Path
from typing import Literal

from dap.data import Images, load_suite
from dap.errors import DapError
from dap.models import Classifier, create_classifier

SHARED = Path(os.environ.get("DAP_SHARED", Path(__file__).parents[2] / "shared"))
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


def pacs(pixels: int, cache: Path | Literal[False] | None = None) -> dict[str, Images]:
    """Every domain's images at (pixels, pixels), normalised with ImageNet's statistics."""
    if not (SHARED / "data" / "PACS").is_dir():
        raise DapError(f"no PACS images in {SHARED / 'data'}: set DAP_SHARED to the folder that holds data/PACS")
    domains = load_suite("PACS", SHARED / "data", pixels, cache).domains
    return {name: images for name, images in domains.items() if isinstance(images, Images)}


def resnet18(classes: int) -> Classifier:
    """With ImageNet weights and a fresh head."""
    return create_classifier("resnet18", classes, SHARED / "weights" / "resnet18.safetensors")
