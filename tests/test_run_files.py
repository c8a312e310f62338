"""Damaged, changed and exchanged files of run folders."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from damage import log_mutants, mutants
from dap.cli import main
from dap.errors import DapError
from dap.report import read_findings, read_records
from dap.report.oracles import read_oracles
from dap.report.origin import origin_of
from dap.run_files import check_run, read_json, read_result, read_spec
from dap.runs import evaluate_run, load_pruned, prune_dense, read_metrics
from dap.runs.evaluating import content_of
from dap.runs.folder import last_metrics, note_failure
from dap.runs.opening import trained_of
from dap.runs.subjects import model_names, open_subjects
from dap.specs import EvaluateSpec, PruneSpec, folder_name
from small_prunings import dense_training, spec_of
from small_studies import write_as_before

SEED = 26


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """A dense training, a pruning of it, an evaluation of that, and the note of a failure."""
    folder = tmp_path_factory.mktemp("files") / "runs"
    dense = dense_training(folder / "dense")
    dense = dense.rename(folder / folder_name(read_spec(dense)))
    spec = spec_of(dense, "dap", watch_every=1)
    prune_dense(spec, folder / "pruned")
    evaluate_run(
        EvaluateSpec(str(folder / "pruned"), attacks=("fgsm",), images=2, interpret=True), folder / "evaluated"
    )
    try:
        raise OSError("the disk is full")
    except OSError as error:
        note_failure(folder / "pruned", error)
    return folder


@pytest.fixture
def copied(runs, tmp_path) -> Path:
    return shutil.copytree(runs, tmp_path / "runs")


def dense_of(runs: Path) -> Path:
    return next(runs.glob("train-*"))


def _specs(run: Path) -> Any:
    return read_spec(run)


def _numbers(run: Path) -> Any:
    check_run(run)
    return read_result(run)


def _document(name: str) -> Callable[[Path], Any]:
    return lambda run: read_json(run / name)


def _stood_on(run: Path) -> Any:
    spec = read_spec(run)
    assert isinstance(spec, PruneSpec)
    return trained_of(spec, run), read_json(run / "dense.json", "identity")


# By kind: the runs that have such a file, and what is read from it.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {
    "spec.json": (("train-*", "pruned", "evaluated"), _specs),
    "result.json": (("train-*", "pruned", "evaluated", "pruned/0.5"), _numbers),
    "environment.json": (("train-*",), _document("environment.json")),
    "images.json": (("train-*",), _document("images.json")),
    "dense.json": (("pruned",), _stood_on),
    "failure.json": (("pruned",), _document("failure.json")),
    "metrics.jsonl": (("train-*", "pruned", "evaluated"), read_metrics),
}


def _read_all(runs: Path, run: Path) -> None:
    """Everything that reads JSON files without opening a model."""
    with suppress(DapError):
        check_run(run)
    with suppress(DapError):
        records = read_records(runs)
        read_findings(runs, records)
        list(read_oracles(runs, records))
    for look in (origin_of, content_of, model_names, read_metrics, last_metrics):
        with suppress(DapError, FileNotFoundError):
            look(run)


def _same(kind: str, found: Any, honest: Any, mutant: bytes) -> bool:
    if kind == "metrics.jsonl" and not mutant.endswith(b"\n"):  # as a kill leaves it
        return found == honest[: len(found)]
    return repr(found) == repr(honest)


COUNTS = pytest.mark.parametrize(
    "count", [pytest.param(2_000, id="2000"), pytest.param(10_000, id="10000", marks=pytest.mark.slow)]
)


@COUNTS
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_loads_with_other_content(kind, count, copied):
    patterns, look = KINDS[kind]
    make, refused = log_mutants if kind == "metrics.jsonl" else mutants, 0
    for number, pattern in enumerate(patterns):
        (run,) = copied.glob(pattern)
        file, honest = run / kind, look(run)
        text = file.read_text()
        for mutant in make(text, -(-count // len(patterns)), SEED + number):
            file.write_bytes(mutant)
            try:
                found = look(run)
            except DapError as error:
                assert str(file) in str(error)
                assert "\n" not in str(error)
                refused += 1
            else:
                assert _same(kind, found, honest, mutant), mutant
        file.write_text(text)
    print(f"{kind}: {count} changed files, {refused} refused, none read with other content")
    assert refused > 0.8 * count


@COUNTS
@pytest.mark.parametrize("kind", KINDS)
def test_files_without_digests_are_read_or_refused(kind, count, copied):
    """As earlier versions wrote them. Nobody can tell that a number is another; but nothing else than an error comes."""
    for file in copied.rglob("*.json"):
        write_as_before(file)
    for file in copied.rglob("*.jsonl"):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in read_metrics(file.parent)))
    _read_all(copied, copied / "pruned")
    patterns, _ = KINDS[kind]
    make = log_mutants if kind == "metrics.jsonl" else mutants
    for number, pattern in enumerate(patterns):
        (run,) = copied.glob(pattern)
        file, top = run / kind, run if (run / "spec.json").exists() else run.parent
        text = file.read_text()
        for mutant in make(text, count // (20 * len(patterns)), SEED - number):
            file.write_bytes(mutant)
            _read_all(copied, top)
        file.write_text(text)
