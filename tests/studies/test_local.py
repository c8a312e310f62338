"""Worker processes: everything is done once, whatever happens to them."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dap.cli import main
from dap.runs import read_metrics
from dap.runtime.checkpoints import load_state
from dap.specs import EvaluateSpec, PruneSpec
from dap.specs.run_files import read_json, read_result
from dap.studies import read_study
from dap.studies.events import Events
from dap.studies.local import run_locally
from dap.studies.status import forget_failure, status
from dap.studies.work import Progress, work_on
from small_studies import SIX, THREE, contents, leftovers, make_study

LONGER = SIX.replace("steps: 6,", "steps: 40,").replace("check_every: 3", "check_every: 20")
LONGEST = LONGER.replace("seed: 0", "seed: [0, 1]")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, str]:
    return alone(tmp_path_factory.mktemp("undisturbed"), LONGER)


def alone(folder: Path, text: str) -> dict[str, str]:
    """What one worker comes to."""
    study = make_study(folder, text)
    outcomes = run_locally(study, list(study.runs), workers=1)
    assert set(outcomes.values()) == {"done"}
    assert list(outcomes) == list(study.runs)
    return contents(study)


def children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def test_two_workers_come_to_the_same(undisturbed, tmp_path):
    study = make_study(tmp_path, LONGER)
    ended: list[str] = []
    run_locally(study, list(study.runs), workers=2, events=Events(ended=lambda run, *_: ended.append(run)))
    assert contents(study) == undisturbed
    assert sorted(ended) == sorted(study.runs)
    for run, needs in study.needs.items():
        assert all(ended.index(need) < ended.index(run) for need in needs)
    assert children() == []
    before = {path: path.stat().st_mtime_ns for path in study.folder.rglob("result.json")}
    assert run_locally(study, list(study.runs), workers=1) == dict.fromkeys(study.runs, "done")
    assert {path: path.stat().st_mtime_ns for path in study.folder.rglob("result.json")} == before  # not made again


@pytest.mark.parametrize(("times", "text"), [(3, LONGER), pytest.param(20, LONGEST, marks=pytest.mark.slow)])
def test_workers_that_are_killed_at_random(times, text, request, tmp_path):
    """As the system does when memory runs out: the runs are tried again, and come to the same."""
    undisturbed = request.getfixturevalue("undisturbed") if text is LONGER else alone(tmp_path / "alone", text)
    study = make_study(tmp_path, text)
    rng, killed, timers = random.Random(0), [], []

    def kill() -> None:
        if len(killed) < times and (victims := children()):
            killed.append(rng.choice(victims))
            os.kill(killed[-1], signal.SIGKILL)

    def soon(run, progress) -> None:  # at any moment after a step, or while another worker begins
        timers.append(threading.Timer(rng.uniform(0, 0.5), kill))
        timers[-1].start()

    outcomes = run_locally(study, list(study.runs), workers=2, retries=100, events=Events(progress=soon))
    for timer in timers:
        timer.cancel()
        timer.join()
    assert len(killed) == times
    assert outcomes == dict.fromkeys(study.runs, "done")
    assert contents(study) == undisturbed
    assert leftovers(study) == []
    assert children() == []


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_fails_and_the_rest_is_done(tmp_path):
    study = make_study(tmp_path, THREE)
    dense, magnitude, dap = study.runs

    def kill(run, progress):
        if run == dap:
            for pid in children():
                os.kill(pid, signal.SIGKILL)

    outcomes = run_locally(study, list(study.runs), workers=1, retries=1, events=Events(progress=kill))
    assert outcomes == {dense: "done", magnitude: "done", dap: "failed"}
    found = {row.run: row for row in status(study)}
    assert found[dap].state == "failed"
    assert found[dap].error.startswith("its process was killed 2 times (exit code -9): out of memory?")


def test_failures_keep_their_traceback_and_what_needs_them_waits(tmp_path):
    study = make_study(tmp_path, THREE.replace("target: plain", "target: [moon, plain]"))
    outcomes = run_locally(study, list(study.runs), workers=2)
    bad = next(run for run, spec in study.runs.items() if getattr(spec, "targets", ()) == ("moon",))
    states = {row.run: row.state for row in status(study)}
    assert sorted(outcomes.values()) == ["done", "done", "done", "failed"]
    assert [run for run, state in states.items() if state == "failed"] == [bad]
    assert sum(state == "waiting" for state in states.values()) == 2
    failure = json.loads((study.place(bad) / "failure.json").read_text())
    assert failure["error"].startswith("images has no domain 'moon'")
    assert "Traceback" in failure["traceback"]
    forget_failure(study, bad)
    assert {row.run: row.state for row in status(study)}[bad] == "waiting"


@pytest.mark.slow
def test_a_worker_that_is_killed_when_it_has_nothing_to_do(tmp_path):
    study = make_study(tmp_path, THREE)

    def kill(run, outcome, error):
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)

    assert run_locally(study, list(study.runs), workers=1, retries=0, events=Events(ended=kill)) == dict.fromkeys(
        study.runs, "done"
    )


def test_what_failed_in_other_hands_is_not_done_again(tmp_path):
    study = make_study(tmp_path, THREE)
    dense = next(iter(study.runs))
    study.place(dense).mkdir(parents=True)
    (study.place(dense) / "failure.json").write_text('{"error": "theirs", "traceback": ""}')
    errors = []
    assert run_locally(study, [dense], 1, events=Events(ended=lambda *news: errors.append(news[2]))) == {
        dense: "failed"
    }
    assert errors == ["theirs"]


def _work(folder: Path) -> None:
    study = read_study(folder / "study.yaml", folder / "runs")

    def note(run: str, news: Progress) -> None:
        if news.step == news.steps:
            with open(folder / "ends", "a") as file:
                file.write(f"{run} {news.stage}\n")

    run_locally(study, list(study.runs), workers=1, events=Events(progress=note))


@pytest.mark.slow
def test_two_processes_on_one_study_never_do_the_same_run(undisturbed, tmp_path):
    context = multiprocessing.get_context("spawn")
    study = make_study(tmp_path, LONGER)
    both = [context.Process(target=_work, args=(tmp_path,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
        assert process.exitcode == 0
    assert contents(study) == undisturbed
    ends = (tmp_path / "ends").read_text().splitlines()
    assert len(ends) == len(set(ends)) > 0  # nothing was done twice


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_study_that_is_asked_to_stop_saves_and_the_same_command_goes_on(asked, tmp_path):
    study = make_study(tmp_path, THREE.replace("steps: 6", "steps: 40"))
    command = [Path(sys.executable).with_name("dap"), "study", "run", "study.yaml", "--out", "runs", "--workers", "2"]
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if asked == signal.SIGTERM else []
    process = subprocess.Popen(
        [*in_background, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # also where these tests run in the background
    )
    deadline = time.monotonic() + 60
    while not any(row.state == "running" for row in status(study)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, asked)  # as a terminal does, and a scheduler
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "dap: interrupted\n"
    states = {row.state for row in status(study)}
    assert "running" not in states
    assert states & {"stopped", "waiting"}
    dense = study.place(next(iter(study.runs)))
    _, values = load_state(dense / "state.safetensors", "dense training")
    assert len(values["losses"]) == read_metrics(dense)[-1]["step"] < 40  # every step that was done is saved
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0
    assert {row.state for row in status(study)} == {"done"}


def test_workers_end_with_whoever_hired_them(tmp_path):
    context = multiprocessing.get_context("spawn")
    study = make_study(tmp_path, LONGER)
    boss = context.Process(target=_work, args=(tmp_path,))
    boss.start()
    deadline = time.monotonic() + 60
    while not any(row.state == "running" for row in status(study)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert boss.pid is not None
    os.kill(boss.pid, signal.SIGKILL)
    boss.join()
    while any(row.state == "running" for row in status(study)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["spec.json", "failure.json"])
def test_a_damaged_file_concerns_its_run_alone(name, tmp_path):
    study = make_study(tmp_path, THREE)
    place = study.place(next(iter(study.runs)))
    place.mkdir(parents=True)
    (place / name).write_text("")
    first, *others = status(study)
    assert first.state == "damaged"
    assert f"{place / name} is damaged" in first.error
    assert {row.state for row in others} == {"waiting"}


def test_damaged_runs_are_listed_and_done_again(tmp_path, capsys):
    study = make_study(tmp_path, THREE)
    for spec in study.runs.values():
        assert work_on(spec, study.folder, lambda progress: None) == ("done", "")
    before = {run: read_result(study.place(run)) for run in study.runs}
    dense, magnitude, dap = study.runs
    result = study.place(dense) / "result.json"
    result.write_text(result.read_text().replace('"steps": 6', '"steps": 7', 1))
    (study.place(magnitude) / "spec.json").write_text("[]")
    (study.place(dap) / "0.5" / "result.json").write_bytes(b"\xff")
    arguments = [str(tmp_path / "study.yaml"), "--out", str(study.folder)]
    assert main(["study", "status", *arguments]) == 1
    shown = capsys.readouterr().out
    assert "3 runs, 3 damaged" in shown
    assert f"- {dense} damaged: {result} is damaged" in shown
    assert main(["report", str(study.folder)]) == 1
    assert f"{study.folder}/" in (said := capsys.readouterr().err)
    assert "is damaged" in said
    assert main(["study", "run", *arguments, "--workers", "1"]) == 0
    assert {run: read_result(study.place(run)) for run in study.runs} == before
    assert {row.state for row in status(study)} == {"done"}
    assert sorted(path.name for path in (study.folder / "damaged").iterdir()) == sorted(
        [f"{dense}-result.json-1", f"{magnitude}-1", f"{dap}-0.5-result.json-1", f"{dap}-result.json-1"]
    )


def test_a_folder_of_another_version_is_refused_and_kept(tmp_path):
    study = make_study(tmp_path, THREE)
    dense = next(iter(study.runs))
    place = study.place(dense)
    place.mkdir(parents=True)
    (place / "spec.json").write_text('{"format": 0}')
    (place / "result.json").write_text("{}")
    found = status(study)[0]
    assert found.state == "failed"
    assert found.error.endswith("has format 0, this version of dap has 1: choose another out")
    assert run_locally(study, [dense], workers=1) == {dense: "failed"}
    assert (place / "spec.json").read_text() == '{"format": 0}'
    assert (place / "result.json").read_text() == "{}"


def test_results_that_came_alone_count_and_models_are_made_again_where_they_are_needed(study, tmp_path):
    alone = replace(study, folder=tmp_path / "runs")
    for run in study.runs:
        alone.place(run).mkdir(parents=True)
        for name in ("spec.json", "result.json"):
            shutil.copy(study.place(run) / name, alone.place(run) / name)
    assert all(map(alone.done, alone.runs))
    assert alone.again_for([]) == []

    evaluation = next(
        run
        for run, spec in study.runs.items()
        if isinstance(spec, EvaluateSpec) and isinstance(spec.run, PruneSpec) and spec.run.method == "dap"
    )
    (alone.place(evaluation) / "result.json").unlink()
    (pruning,) = alone.needs[evaluation]
    (dense,) = alone.needs[pruning]
    assert alone.again_for([evaluation]) == [dense, pruning]
    assert not alone.can_begin(evaluation)
    outcomes = run_locally(alone, [evaluation], workers=1)
    assert outcomes == dict.fromkeys([dense, pruning, evaluation], "done")
    assert alone.can_begin(evaluation)
    (alone.place(dense) / "objective.safetensors").unlink()
    assert alone.again_for([evaluation]) == [dense]  # masks alone are no model
    for run in (dense, pruning):
        assert read_json(alone.place(run) / "result.json") == read_json(study.place(run) / "result.json")
    models = [read_json(one.place(evaluation) / "result.json")["models"] for one in (alone, study)]
    assert models[0] == models[1]
