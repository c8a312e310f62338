"""Real images and weights for the experiments here: PACS, and ResNets with ImageNet weights."""

import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from dap.errors import DapError
from dap.files import replacing
from dap.torchvision_repair import repair_torchvision

SHARED = Path(os.environ.get("DAP_SHARED", Path(__file__).parents[2] / "shared"))
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pacs(pixels: int, cache: Path = Path("runs/cache"), at_most: int | None = None) -> dict[str, TensorDataset]:
    """Every domain's images (`at_most` so many) at (pixels, pixels), normalised with ImageNet's statistics."""
    root = SHARED / "data" / "PACS"
    if not root.is_dir():
        raise DapError(f"no PACS images at {root}: set DAP_SHARED to the folder that holds data/PACS")
    name = f"{pixels}-{at_most or 'all'}.safetensors"
    return {domain: _domain(root / domain, pixels, cache / f"pacs-{domain}-{name}", at_most) for domain in DOMAINS}


def _domain(folder: Path, pixels: int, cache: Path, at_most: int | None) -> TensorDataset:
    if not cache.exists():
        classes = sorted(path.name for path in folder.iterdir())
        files = [(path, classes.index(path.parent.name)) for path in sorted(folder.glob("*/*.jpg"))]
        files = files[:: -(-len(files) // (at_most or len(files)))]
        pictures = (Image.open(path).convert("RGB") for path, _ in files)
        images = [np.asarray(picture.resize((pixels, pixels), Image.Resampling.BILINEAR)) for picture in pictures]
        arrays = {
            "images": torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(),
            "labels": torch.tensor([label for _, label in files]),
        }
        with replacing(cache) as temporary:
            safetensors.torch.save_file(arrays, temporary)
    arrays = safetensors.torch.load_file(cache)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return TensorDataset((arrays["images"].float() / 255 - mean) / std, arrays["labels"])


def resnet(name: str, classes: int, pretrained: bool = True) -> nn.Module:
    """timm's ResNet; with ImageNet weights for `resnet18`."""
    repair_torchvision()
    import timm

    model = timm.create_model(name, num_classes=classes)
    if pretrained:
        weights = safetensors.torch.load_file(SHARED / "weights" / f"{name}.safetensors")
        missing = model.load_state_dict({key: value.float() for key, value in weights.items()}, strict=False)
        assert set(missing.missing_keys) == {"fc.weight", "fc.bias"}, missing
    return model
