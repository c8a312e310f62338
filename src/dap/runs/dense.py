"""A dense model on disk, with the objective it was trained with: what mask learning starts from."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import torch

from dap.errors import DapError
from dap.models import Classifier, ModelCard, load_classifier, save_classifier
from dap.objectives import OBJECTIVES, Objective
from dap.runtime.checkpoints import load_state, save_state
from dap.runtime.reading import reading, require, require_like, require_types
from dap.specs.file_names import MODEL, OBJECTIVE
from dap.specs.run_files import own

_VALUES = {"objective": str, "options": dict[str, Any], "domains": list[str], "classes": int, "trained": int}


def save_dense(
    folder: str | Path, model: Classifier, objective: Objective, domains: tuple[str, ...], card: ModelCard
) -> None:
    """Write the model, and what its objective learned on the source `domains` beside it.

    >>> from dap.models import small_resnet
    >>> save_dense(tmp, small_resnet(2), OBJECTIVES["erm"](), ("art", "photo"), ModelCard(("cat", "dog"), pixels=32))
    """
    name = next((name for name, kind in OBJECTIVES.items() if type(objective) is kind), None)
    if name is None:
        raise DapError(f"{type(objective).__name__} is not in dap.objectives.OBJECTIVES: add it, to find it again")
    values = {"objective": name, "options": objective.options(), "domains": list(domains), "classes": model.classes}
    values["trained"] = objective.trained
    tensors = {key: tensor.cpu() for key, tensor in objective.state_dict().items()}
    save_state(Path(folder) / OBJECTIVE, tensors, values, "an objective")
    save_classifier(model, Path(folder) / MODEL, replace(card, notes={**card.notes, "sources": list(domains)}))


def load_dense(folder: str | Path) -> tuple[Classifier, Objective, ModelCard]:
    """What `save_dense` wrote: the model, and its objective as training left it.

    >>> from dap.models import small_resnet
    >>> save_dense(tmp, small_resnet(2), OBJECTIVES["erm"](), ("art", "photo"), ModelCard(("cat", "dog"), pixels=32))
    >>> model, objective, card = load_dense(tmp)
    >>> card.class_names, card.notes["sources"]
    (('cat', 'dog'), ['art', 'photo'])
    """
    folder = Path(folder)
    for part in (MODEL, OBJECTIVE):
        if not (folder / part).is_file():
            raise DapError(f"no {part} in {folder}: give the folder of a finished dense training")
    model, card = load_classifier(own(folder, MODEL))
    return model, _load_objective(own(folder, OBJECTIVE), model), card


def _load_objective(file: Path, model: Classifier) -> Objective:
    tensors, values = load_state(file, "an objective")
    with reading(file, "an objective", "train the dense model again"):
        require_types(values, _VALUES, only=True)
        require(values["objective"] in OBJECTIVES, f"no objective is called {values['objective']!r}")
        require(values["classes"] == model.classes, f"it is for {values['classes']} classes, not {model.classes}")
        require(values["trained"] >= 0, f"it was trained for {values['trained']} steps")
        kind, options = OBJECTIVES[values["objective"]], values["options"]
        kinds = get_type_hints(kind.__init__)
        require_types(options, {name: kinds.get(name, type(None)) for name in options})
        with torch.device("meta"):  # without memory: a small file may ask for a large discriminator
            outline = kind(**options)
            outline.prepare(model, tuple(values["domains"]), values["classes"])
        require_like(tensors, outline.state_dict())
        with torch.device("cpu"):
            objective = kind(**options)
            objective.prepare(model, tuple(values["domains"]), values["classes"])
        objective.load_state_dict(tensors)
        objective.trained = values["trained"]
        return objective
