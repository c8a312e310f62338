"""What is written in a folder stays in it; a folder may itself be a link, to another disk say."""

import shutil

import pytest

from dap.cli import main
from dap.errors import DapError
from dap.runs import prune_dense
from dap.runs.folder import note_failure
from dap.studies import read_study
from dap.studies.status import status
from dap.studies.study import keep_file
from small_prunings import dense_training, spec_of
from small_studies import THREE

EVALUATE = ["--attacks", "fgsm", "--severities", "1", "--images", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A dense training and a pruning of it."""
    folder = tmp_path_factory.mktemp("runs")
    prune_dense(spec_of(dense_training(folder / "dense"), "magnitude"), folder / "pruned")
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    shutil.copytree(runs / "pruned", tmp_path / "pruned")
    return tmp_path / "pruned"


NAMES = [
    "spec.json", "result.json", "metrics.jsonl", "environment.json", "failure.json", "dense.json", ".lock",
    "state.safetensors", "0.5", "0.5/masks.safetensors", "0.5/model.safetensors", "0.5/result.json",
]  # fmt: skip
READ = ("spec.json", "result.json", "dense.json")  # before anything is written


@pytest.mark.parametrize(
    ("name", "is_there"), [(name, False) for name in NAMES] + [(name, True) for name in NAMES if name not in READ]
)
def test_no_link_leads_what_a_run_writes_out_of_its_folder(name, is_there, runs, tmp_path):
    outside, link = tmp_path / "outside", tmp_path / "run" / name
    if is_there:
        outside.mkdir() if name == "0.5" else outside.write_text("{}")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(DapError, match=f"{name} leads out of .*/run "):
        prune_dense(spec_of(runs / "dense", "magnitude"), tmp_path / "run")
    note_failure(tmp_path / "run", RuntimeError("as a worker of a study does"))
    if not is_there:
        assert not outside.exists()
    else:
        assert [*outside.iterdir()] == [] if name == "0.5" else outside.read_text() == "{}"


def refused(command: list[str], capsys) -> str:
    capsys.readouterr()
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_report_stays_in_its_folder(copied, tmp_path, capsys):
    pytest.importorskip("altair", reason="needs altair: pip install 'dap[report]'")
    (tmp_path / "mine").write_text("kept")
    (copied / "report.html").symlink_to(tmp_path / "mine")
    assert "pruned/report.html leads out of" in refused(["report", str(copied)], capsys)
    for name in ("overview-validation.csv", "layers.svg"):
        files = tmp_path / name.split(".")[1]
        files.mkdir()
        (files / name).symlink_to(tmp_path / "mine")
        page = ["--out", str(tmp_path / "page.html")]
        assert f"{name} leads out of" in refused(["report", str(copied), *page, "--files", str(files)], capsys)
    assert (tmp_path / "mine").read_text() == "kept"
    assert main(["report", str(copied), "--out", str(copied / "report.html")]) == 0  # its user named it
    assert (copied / "report.html").is_symlink()
    assert "<html" in (tmp_path / "mine").read_text()


def test_an_evaluation_stays_in_its_run(copied, tmp_path, capsys):
    assert main(["evaluate", str(copied), *EVALUATE]) == 0
    (done,) = copied.glob("evaluation-*")
    (tmp_path / "mine").write_text("kept")
    (done / "attacks.csv").unlink()
    (done / "attacks.csv").symlink_to(tmp_path / "mine")
    assert "attacks.csv leads out of" in refused(["evaluate", str(copied), *EVALUATE], capsys)
    assert (tmp_path / "mine").read_text() == "kept"
    shutil.rmtree(done)
    (tmp_path / "outside").mkdir()
    done.symlink_to(tmp_path / "outside")
    assert f"{done.name} leads out of" in refused(["evaluate", str(copied), *EVALUATE], capsys)
    assert [*(tmp_path / "outside").iterdir()] == []


def test_a_study_stays_in_its_folder(tmp_path):
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "study.yaml").write_text(THREE)
    study = read_study(tmp_path / "study.yaml", tmp_path / "runs")
    run = study.place(next(iter(study.runs)))
    for link in (study.folder / "studies" / "study.yaml", run / ".lock"):
        link.parent.mkdir(parents=True)
        link.symlink_to(tmp_path / "mine")
    with pytest.raises(DapError, match=r"studies/study.yaml leads out of"):
        keep_file(study, tmp_path / "study.yaml")
    status(study)
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_folder_may_be_a_link(runs, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    prune_dense(spec_of(runs / "dense", "magnitude"), tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), *EVALUATE]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run").is_symlink()
    names = {path.name.split("-")[0] for path in (tmp_path / "disk").iterdir()}
    assert {"spec.json", "result.json", "metrics.jsonl", "0.3", "0.5", "evaluation", "report.html"} <= names
