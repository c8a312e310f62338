"""The best of several dense trainings as a run, chosen by the sources alone."""

from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from dap.errors import DapError
from dap.runs.folder import finished, working_in
from dap.runtime.engine import Engine
from dap.specs.file_names import RESULT, SPEC
from dap.specs.run_files import as_read, intact, read_result, write_result
from dap.specs.runs import BestSpec, TrainSpec, folder_name
from dap.training.selection import LeftOutScore, SourceScore, leave_one_domain_out, training_domain_validation


def choose_best(spec: BestSpec, folder: str | Path) -> dict[str, Any]:
    """Choose among finished trainings, whose folders are beside `folder`; of equals the first."""
    spec, folder = spec.resolved(), Path(folder)
    if (done := finished(folder, spec)) is not None:
        return done
    names = [folder_name(candidate) for candidate in spec.candidates]
    scores: list[SourceScore] = []
    for number, name in enumerate(names):
        # Accuracy on the sources, and nothing else, goes into the choice; its step stands for the candidate.
        found = _result(folder.parent / name)
        with intact(folder.parent / name / RESULT):
            score = found["score"]
            scores.append(SourceScore(number, score["accuracy"], score["loss"]))
    if spec.left_out:
        left_out = {number: _left_out(spec, candidate, folder) for number, candidate in enumerate(spec.candidates)}
        best = leave_one_domain_out(left_out)
        means = [fmean(one.accuracy for one in found) for found in left_out.values()]
    else:
        best = training_domain_validation(scores).step
        means = [score.mean_accuracy for score in scores]
    with working_in(folder, spec, Engine()):  # made twice, it is made the same
        result = {"spec": asdict(spec), "chosen": names[best], "score": asdict(scores[best])}
        result["accuracy"] = dict(zip(names, means, strict=True))
        write_result(folder, result, SPEC)
    return as_read(result)


def _left_out(spec: BestSpec, candidate: TrainSpec, folder: Path) -> list[LeftOutScore]:
    """Of the numbers on what a training did not see, those on the source alone: the target's stay where they are."""
    return [
        LeftOutScore(domain, _result(folder.parent / folder_name(training))["targets"][domain]["80 %"])
        for domain, training in spec.without(candidate).items()
    ]


def _result(run: Path) -> dict[str, Any]:
    if not (run / RESULT).is_file():
        raise DapError(f"{run.name} is not done: there is no {run / RESULT}")
    return read_result(run)
