"""What to expect of a study: a few steps of every kind of run in it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dap.runs.estimates import dense_of, expect, kind_of
from dap.runs.rehearsal import measure
from dap.runtime.engine import engine_on
from dap.studies.study import Study


class StudyEstimate(NamedTuple):
    runs: int  # that are left to do
    work: dict[str, float]  # seconds of one worker, by what they are spent on
    seconds: float  # of all workers together, decoding included
    memory: int  # bytes at the peak, of all workers together
    gpu_memory: int
    disk: int  # bytes in the study's folder
    cache: int  # bytes of decoded images


def rehearse_study(
    study: Study, runs: list[str], workers: int, on_step: Callable[[str, int, int], Any] | None = None
) -> StudyEstimate:
    """`on_step` is told of every kind of run that was measured."""
    kinds = {run: kind_of(study.runs[run]) for run in runs if study.runs[run].kind != "best"}
    first = {kind: run for run, kind in reversed(kinds.items())}
    costs = {}
    device = "cuda" if torch.cuda.is_available() else None  # as workers have it
    for number, (kind, run) in enumerate(first.items(), 1):
        precision = getattr(study.runs[run], "precision", "32-true")
        costs[kind] = measure(study.runs[run], engine_on(device, precision))
        if on_step is not None:
            on_step(run, number, len(first))
    expected = {run: expect(study.runs[run], costs[kind]) for run, kind in kinds.items()}
    work: dict[str, float] = {}
    for one in expected.values():
        for part, seconds in one.seconds.items():
            work[part] = work.get(part, 0.0) + seconds
    images = {}  # decoded once for all runs on them
    for run, one in expected.items():
        dense = dense_of(study.runs[run])
        images[dense.suite, dense.pixels] = one
    at_once = min(workers, max(1, len(expected)))
    return StudyEstimate(
        len(runs),
        work,
        sum(one.decoding for one in images.values()) + sum(work.values()) / at_once,
        at_once * max((one.memory for one in expected.values()), default=0),
        at_once * max((one.gpu_memory for one in expected.values()), default=0),
        sum(one.disk for one in expected.values()),
        sum(one.cache for one in images.values()),
    )
