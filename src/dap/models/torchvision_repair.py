"""Makes torchvision importable where its compiled operators do not load, as beside a CPU build of torch."""

import sys

import torch

_kept: list[torch.library.Library] = []  # operators live as long as their library object


def repair_torchvision() -> None:
    """Import torchvision; if it stumbles over a missing operator, declare the operator and import it again.

    Only after a failure: on a healthy installation a second declaration would be the error.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        import torchvision  # noqa: F401
