"""Damaged, changed and exchanged files of run folders."""

import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from damage import log_mutants, mutants
from dap.cli import main
from dap.errors import DapError
from dap.report import read_findings, read_records
from dap.report.oracles import read_oracles
from dap.report.origin import origin_of
from dap.runs import evaluate_run, load_pruned, prune_dense, read_metrics, train_dense
from dap.runs.evaluating import content_of
from dap.runs.folder import last_metrics, note_failure
from dap.runs.opening import trained_of
from dap.runs.subjects import model_names, open_subjects
from dap.specs import EvaluateSpec, PruneSpec, TrainSpec, folder_name
from dap.specs.run_files import check_run, read_json, read_result, read_spec
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
            line = ""
            try:
                found = look(run)
            except DapError as error:
                found, line = None, str(error)
            if found is None:
                refused += 1
                assert str(file) in line
                assert "\n" not in line
            else:
                assert _same(kind, found, honest, mutant), mutant
        file.write_text(text)
    print(f"{kind}: {count} changed files, {refused} refused, none read with other content")
    assert refused > 0.8 * count


@COUNTS
@pytest.mark.parametrize("kind", KINDS)
def test_files_without_digests_are_read_or_refused(kind, count, copied):
    """As earlier versions wrote them: a changed number cannot be noticed, but only a `DapError` is raised."""
    for file in copied.rglob("*.json"):
        write_as_before(file)
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


def _exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


@pytest.mark.parametrize("name", ["masks.safetensors", "result.json", ""])
def test_exchanged_masks_are_noticed(name, copied):
    run = copied / "pruned"
    assert load_pruned(run, 0.5)[1].sparsity == pytest.approx(0.5, abs=1e-5)
    _exchange(run / "0.3" / name, run / "0.5" / name)
    with pytest.raises(DapError, match=rf"{run}/0.5/(masks.safetensors|result.json) is damaged .* with another one"):
        load_pruned(run, 0.5)


@pytest.mark.parametrize("name", ["model.safetensors", "objective.safetensors"])
def test_another_dense_model_is_noticed(name, copied, tmp_path):
    dense = dense_of(copied)
    other = tmp_path / "other"
    spec = read_spec(dense)
    assert isinstance(spec, TrainSpec)
    train_dense(replace(spec, train=replace(spec.train, seed=3, steps=3)), other)
    shutil.copy(other / name, dense / name)
    with pytest.raises(DapError, match=rf"{dense / name} is damaged .* was written with another one"):
        open_subjects(dense)
    for file in (dense / "spec.json", dense / "result.json"):
        write_as_before(file)
    if name == "model.safetensors":  # the pruning knows it, too
        with pytest.raises(DapError, match="the dense model is not the one that .* prunes"):
            open_subjects(copied / "pruned", dense=dense)


def test_other_logits_are_noticed(copied):
    state = copied / "pruned" / "state.safetensors"
    state.write_bytes(state.read_bytes() + b" ")
    spec = EvaluateSpec(str(copied / "pruned"), interpret=True)
    with pytest.raises(DapError, match=f"{state} is damaged"):
        evaluate_run(spec, copied / "again")


def test_an_evaluation_of_another_run_is_noticed(copied):
    moved = shutil.copytree(copied / "evaluated", dense_of(copied) / "evaluation-x")
    with pytest.raises(DapError, match=rf"{moved}/result.json is damaged \(it is about a run that was in"):
        read_findings(copied, read_records(copied))


def test_what_a_pruning_began_with_must_be_there(copied):
    (copied / "pruned" / "dense.json").unlink()
    with pytest.raises(DapError, match=r"pruned/dense.json is missing: restore it"):
        load_pruned(copied / "pruned", 0.5)


def test_results_and_folders_of_other_runs_are_noticed(copied, capsys):
    dense = dense_of(copied)
    shutil.copy(copied / "evaluated" / "result.json", dense / "result.json")
    with pytest.raises(DapError, match=rf"{dense}/result.json is damaged \(it is the result of another run\)"):
        read_result(dense)
    assert main(["report", str(copied)]) == 1
    assert f"{dense}/result.json is damaged" in capsys.readouterr().err
    renamed = (copied / "pruned").rename(copied / "prune-0123456789ab")
    with pytest.raises(DapError, match=r"spec.json is damaged \(it is the specification of prune-"):
        read_spec(renamed)


def test_a_changed_number_does_not_reach_a_report(copied, capsys):
    file = copied / "pruned" / "result.json"
    text = file.read_text()
    file.write_text(text.replace('"all": 0.', '"all": 0.0', 1))
    assert file.read_text() != text
    assert main(["report", str(copied / "pruned")]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert f"{file} is damaged (ValueError: its content was changed after it was written)" in shown


def test_memory_is_bounded(copied):
    """Damage costs no more than twice an honest file, and what is too large is not read."""
    run = copied / "pruned"
    file = run / "result.json"
    text = file.read_text()

    def peak() -> int:
        tracemalloc.start()
        with suppress(DapError):
            read_result(run)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    honest = peak()
    for mutant in mutants(text, 200, SEED):
        file.write_bytes(mutant)
        assert peak() < 2 * honest + 2**20  # the deepest nesting alone is 100 kB of brackets
    with open(file, "wb") as stream:
        stream.truncate(2**32)
    assert peak() < 2**20
    with pytest.raises(DapError, match="larger than 64 MB"):
        read_result(run)


def test_kept_results_of_earlier_versions_load():
    kept = [file.parent for file in (Path(__file__).parents[2] / "docs" / "results").rglob("spec.json")]
    assert len(kept) > 100
    for folder in kept:
        check_run(folder)


def test_what_a_kill_leaves_of_a_row(copied):
    log = copied / "evaluated" / "metrics.jsonl"
    rows, whole = read_metrics(log.parent), log.read_bytes()
    log.write_bytes(whole[:-20])
    assert read_metrics(log.parent) == rows[:-1]
    log.write_bytes(whole[:-20] + b"\n" + whole)  # it is not the end
    with pytest.raises(DapError, match=rf"{log} is damaged \(line {len(rows)}: "):
        read_metrics(log.parent)
