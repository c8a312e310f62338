"""Names of the files in a run's folder. Without torch: a study looks for them before anything is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPEC, RESULT, FAILURE, METRICS, ENVIRONMENT = (
    "spec.json", "result.json", "failure.json", "metrics.jsonl", "environment.json",
)  # fmt: skip
STATE = "state.safetensors"  # what going on needs
LOCK = ".lock"  # held by whoever is at it
MODEL, OBJECTIVE, MASKS = "model.safetensors", "objective.safetensors", "masks.safetensors"
IMAGES = "images.json"  # which ones a training began with
DENSE = "dense.json"  # which model a pruning began with
MAPS = "activation_maps.png"  # where models look, in an evaluation
RAW = "raw"  # the folder of raw masks in a pruning's own


def folder_of(run: Path, wished: str) -> Path:
    """Of one sparse model.

    >>> folder_of(Path("runs"), "2:4").as_posix()
    'runs/2-of-4'
    """
    return run / wished.replace(":", "-of-")


def files_of(run: Path, row: Mapping[str, Any]) -> list[Path]:
    """What the sparse model of a result's `row` is made of, beside the dense model."""
    names = (MASKS, MODEL) if row["weights moved"] else (MASKS,)
    return [folder_of(run, row["wished"]) / name for name in names]
