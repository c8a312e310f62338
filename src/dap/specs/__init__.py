"""What a run is asked to do, and its id; methods, suites and file names as plain data. No torch."""

from dap.specs.runs import (
    FORMAT,
    KINDS,
    BestSpec,
    EvaluateSpec,
    ModelSpec,
    PruneSpec,
    Spec,
    TrainSpec,
    folder_name,
    identity,
    read,
)

__all__ = [
    "FORMAT",
    "KINDS",
    "BestSpec",
    "EvaluateSpec",
    "ModelSpec",
    "PruneSpec",
    "Spec",
    "TrainSpec",
    "folder_name",
    "identity",
    "read",
]
