"""Whether hubs may be asked over the network."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def local_only(unless: bool = False) -> Iterator[None]:
    """Inside, data sets and weights of a hub come from the local cache, and nothing is asked over the network."""
    if unless:
        yield
        return
    from huggingface_hub import constants

    before = {module: module.HF_HUB_OFFLINE for module in _readers()}
    for module in before:
        setattr(module, "HF_HUB_OFFLINE", True)  # noqa: B010  # pyright takes the name for a constant
    try:
        yield
    finally:
        for module in _readers():  # the datasets library, if it was imported inside, copied the value
            setattr(module, "HF_HUB_OFFLINE", before.get(module, before[constants]))  # noqa: B010


def is_local_only() -> bool:
    """Whether hubs are not to be asked, here or by the environment's HF_HUB_OFFLINE."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def _readers() -> list[Any]:
    from huggingface_hub import constants

    return [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
