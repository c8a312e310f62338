"""What opening a run may do: import no code and ask no hub, unless the user named it in this command or allows it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dap.errors import DapError
from dap.specs import EvaluateSpec, ModelSpec, PruneSpec, Spec


def names_its_model(spec: Spec | ModelSpec | str) -> bool:
    """Whether a specification says itself which dense model it is about; otherwise only a folder does.

    >>> names_its_model(PruneSpec("runs/dense")), names_its_model(PruneSpec(ModelSpec("mine:build", "digits")))
    (False, True)
    """
    if isinstance(spec, PruneSpec | EvaluateSpec):
        return names_its_model(spec.dense if isinstance(spec, PruneSpec) else spec.run)
    return not isinstance(spec, str)


def check_code(dense: object, trust_code: bool) -> None:
    """Refuse a model whose factory would have to be imported, if its code is not trusted."""
    if isinstance(dense, ModelSpec) and ":" in dense.model and not trust_code:
        raise DapError(
            f"the run's model is made by code, {dense.model}, which this command does not name: "
            "allow its import with --trust-code (trust_code=True)"
        )


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
