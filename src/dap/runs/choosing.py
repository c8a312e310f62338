"""The best of several dense trainings as a run, chosen by the sources alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dap.engine import Engine
from dap.errors import DapError
from dap.layout import RESULT
from dap.runs.folder import as_read, finished, read_json, working_in, write_json
from dap.selection import SourceScore, training_domain_validation
from dap.specs import BestSpec, folder_name


def choose_best(spec: BestSpec, folder: str | Path) -> dict[str, Any]:
    """Choose among finished trainings, whose folders are beside `folder`; of equals the first."""
    spec, folder = spec.resolved(), Path(folder)
    if (done := finished(folder, spec)) is not None:
        return done
    names = [folder_name(candidate) for candidate in spec.candidates]
    scores: list[SourceScore] = []
    for name in names:
        file = folder.parent / name / RESULT
        if not file.is_file():
            raise DapError(f"{name} is not done: there is no {file}")
        # Accuracy on the sources, and nothing else, goes into the choice; its step stands for the candidate.
        found = read_json(file)["score"]
        scores.append(SourceScore(len(scores), found["accuracy"], found["loss"]))
    best = training_domain_validation(scores).step
    with working_in(folder, spec, Engine()):  # made twice, it is made the same
        result = {"spec": asdict(spec), "chosen": names[best], "score": asdict(scores[best])}
        result["accuracy"] = {name: score.mean_accuracy for name, score in zip(names, scores, strict=True)}
        write_json(folder / RESULT, result)
    return as_read(result)
