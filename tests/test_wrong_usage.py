"""Wrong usage of every verb: one line that names the thing, a code that is not 0, and nothing left behind."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from dap.cli import main
from dap.files import write_atomic

QUICK = ["--backbone", "small_resnet", "--weights", "null", "--train.freeze-norms", "false"]
TRAIN = ["train", "digits", "--out", "new", "--targets", "plain", *QUICK]
PRUNE = ["prune", "elsewhere", "--out", "new"]
OWN = ["prune", "a.b:c", "--suite", "digits", "--out", "new"]
EVALUATE, EXPORT = ["evaluate", "elsewhere"], ["export", "elsewhere", "--out", "new"]
RUN, STATUS, REPORT = ["study", "run"], ["study", "status"], ["report"]

WRONG: list[tuple[list[str], str]] = [  # what is given, and what the line names
    *((words, words[-1]) for words in (["dance"], ["study"], ["study", "dance"], ["data"], ["data", "dance"])),
    (["--wrong"], "--wrong"),
    *(([*words, "--wrong"], "--wrong") for words in (TRAIN, PRUNE, EVALUATE, EXPORT, ["report", "x"])),
    *(([*words, "x", "--wrong"], "--wrong") for words in (RUN, STATUS, ["study", "retry"], ["data", "check"])),
    (["completion", "fish"], "shell"),
    (["completion"], "shell"),
    (["train"], "suite"),
    (["train", "digits", "--out", "new"], "targets"),
    (["train", "digits", "--targets", "plain"], "out"),
    (["prune"], "dense"),
    (["evaluate"], "run"),
    (["export"], "run"),
    (["predict", "x.onnx"], "images"),
    (RUN, "study"),
    (STATUS, "study"),
    (REPORT, "runs"),
    (["data", "check"], "suite"),
    # ---- training
    *(
        ([*TRAIN, f"--train.{name}", value], name.replace("-", "_"))
        for name, values in {
            "steps": ("-5", "0", "1.5", "many"),
            "batch-size": ("0", "-1", "100000000", "x"),
            "check-every": ("0", "-1"),
            "learning-rate": ("0", "-1", "nan", "x"),
            "weight-decay": ("-1", "nan"),
            "schedule": ("linear",),
            "patience": ("0", "-1"),
            "seed": ("-1", str(2**63), "x"),
            "swad.converge": ("0",),
        }.items()
        for value in values
    ),
    ([*TRAIN, "--train.wrong", "1"], "wrong"),
    ([*TRAIN, "--train.freeze-norms", "perhaps"], "perhaps"),
    *(([*TRAIN, "--threads", value], "threads") for value in ("-1", "0", "x", "1.5")),
    *(([*TRAIN, "--pixels", value], "pixels") for value in ("-1", "0", "x")),
    *(([*TRAIN, "--dropout", value], "dropout") for value in ("-0.1", "1", "x", "nan")),
    *(([*TRAIN, "--devices", value], "devices") for value in ("99", "0", "x", "-2")),
    *(([*TRAIN, "--nodes", value], "nodes") for value in ("0", "-1", "x")),
    *(([*TRAIN, "--precision", value], "precision") for value in ("16", "x")),
    *(([*TRAIN, "--accelerator", value], "accelerator") for value in ("tpu", "x")),
    *(([*TRAIN, "--objective", value], "objective") for value in ("luck", "")),
    ([*TRAIN, "--options.luck", "1"], "luck"),
    ([*TRAIN, "--on-corrupt", "cry"], "on_corrupt"),
    ([*TRAIN, "--backbone", "no_such_net"], "no_such_net"),
    ([*TRAIN, "--weights", "gone.safetensors"], "gone.safetensors"),
    *(([*TRAIN, "--targets", value], "targets") for value in ("plain,plain", "", ",", "plain,", "plain, plain")),
    ([*TRAIN, "--targets", "moon"], "moon"),
    ([*TRAIN, "--targets", "plain,rotated,outline,textured"], "every domain"),
    *(([*TRAIN, "--out", value], "out") for value in ("", "a\0b")),
    ([*TRAIN, "--out", "file"], "file"),
    ([*TRAIN, "--out", "file/below"], "file"),
    *(([*TRAIN, "--config", name], "config") for name in ("binary", "deep.yaml", "gone.yaml", "list.yaml", ".")),
    ([*TRAIN, "--config", "wrong.yaml"], "wrong"),
    (["train", "gone", *TRAIN[2:]], "gone"),
    (["train", "gone.csv", *TRAIN[2:]], "gone.csv"),
    (["train", "file", *TRAIN[2:]], "file"),
    (["train", "PACS", *TRAIN[2:]], "PACS"),
    (["train", "empty", *TRAIN[2:]], "empty"),
    (["train", "", *TRAIN[2:]], "suite"),
    # ---- pruning
    (PRUNE, "elsewhere"),
    (["prune", ":x", "--out", "new"], ":x"),
    (["prune", ":x", "--suite", "digits", "--out", "new"], ":x"),
    (["prune", "x:", "--suite", "digits", "--out", "new"], "x:"),
    (OWN, "a.b:c"),
    ([*OWN, "--targets", "plain,plain"], "plain"),
    ([*OWN, "--pixels", "0"], "pixels"),
    ([*PRUNE, "--out", ""], "out"),
    ([*PRUNE, "--out", "file"], "file"),
    ([*PRUNE, "--method", "luck"], "luck"),
    ([*PRUNE, "--sparsities", "much"], "sparsities"),
    ([*PRUNE, "--sparsities", ""], "sparsities"),
    ([*PRUNE, "--batches", "0"], "batches"),
    ([*PRUNE, "--watch-every", "0"], "watch_every"),
    ([*PRUNE, "--threads", "-1"], "threads"),
    ([*PRUNE, "--devices", "99"], "devices"),
    *(
        ([*PRUNE, f"--prune.{name}", value], name.replace("-", "_"))
        for name, values in {
            "steps": ("-5", "0", "x"),
            "target-sparsity": ("0", "1", "2", "nan"),
            "alpha": ("-1", "nan"),
            "batch-size": ("0",),
            "learning-rate": ("0", "nan"),
            "p-init": ("0", "1"),
            "beta": ("1", "-1"),
            "f-update": ("0",),
            "seed": ("-1",),
            "stop-at": ("0", "0.99"),
            "coefficient": ("fast",),
        }.items()
        for value in values
    ),
    # ---- evaluation, export, prediction
    (EVALUATE, "elsewhere"),
    ([*EVALUATE, "--attacks", "luck"], "attacks"),
    ([*EVALUATE, "--severities", "9"], "severities"),
    ([*EVALUATE, "--severities", "x"], "severities"),
    ([*EVALUATE, "--images", "0"], "images"),
    ([*EVALUATE, "--restarts", "0"], "restarts"),
    ([*EVALUATE, "--out", ""], "out"),
    (["evaluate", ""], "run"),
    (["evaluate", "file"], "file"),
    (EXPORT, "elsewhere"),
    ([*EXPORT, "--format", "zip"], "format"),
    ([*EXPORT, "--dtype", "int3"], "dtype"),
    ([*EXPORT, "--threads", "-1"], "threads"),
    ([*EXPORT, "--max-size", "huge"], "huge"),
    ([*EXPORT, "--target-latency", "soon"], "soon"),
    ([*EXPORT, "--out", ""], "out"),
    ([*EXPORT, "--out", "empty"], "empty"),
    ([*EXPORT, "--int8"], "int8"),
    ([*EXPORT, "--sparsity", "0.5", "--max-size", "1MB"], "choose one"),
    (["predict", "gone.onnx", "x.png"], "gone.onnx"),
    (["predict", "file", "x.png"], "file"),
    # ---- studies, reports, data
    *(
        ([*words, name], name)
        for words in (RUN, STATUS, ["study", "retry"])
        for name in ("gone.yaml", "binary", "deep.yaml", "nul.yaml", "list.yaml", "wrong.yaml", "empty")
    ),
    ([*RUN, "study.yaml", "--workers", "0"], "workers"),
    ([*RUN, "study.yaml", "--shard", "3/2"], "shard"),
    ([*RUN, "study.yaml", "--gpus", "1"], "gpus"),
    ([*RUN, "study.yaml", "--engine", "spark"], "engine"),
    ([*RUN, "study.yaml", "--out", "file"], "file"),
    ([*REPORT, "gone"], "gone"),
    ([*REPORT, "empty"], "empty"),
    ([*REPORT, "file"], "file"),
    ([*REPORT, "binary.yaml"], "binary.yaml"),
    (["data", "check", "gone"], "gone"),
    (["data", "check", "a\0b"], "suite"),
    (["data", "check", "file"], "file"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "file").write_text("no model")
    (folder / "empty").mkdir()
    for name in ("binary", "binary.yaml"):
        (folder / name).write_bytes(bytes(range(256)))
    (folder / "deep.yaml").write_text("train: " + "[" * 3000 + "]" * 3000)
    (folder / "nul.yaml").write_text('train: {suite: "a\\0b"}')
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    (folder / "wrong.yaml").write_text("wrong: 1\n")
    (folder / "study.yaml").write_text("train: {suite: digits, target: plain, backbone: small_resnet, weights: null}\n")
    return folder


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=lambda value: repr(value)[:60])
def test_one_line_names_what_is_wrong(arguments, named, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code in (1, 2)
    assert err.startswith("dap")
    assert err.count("\n") == 1, err
    assert named in err.replace("-", "_") or named in err
    assert out == ""
    assert sorted(place.rglob("*")) == before


def test_there_are_many():
    print(f"{len(WRONG)} wrong usages")
    assert len(WRONG) >= 120


@pytest.mark.parametrize(
    "arguments", [[*TRAIN, "--train.steps", "-5"], [*TRAIN, "--threads", "-1"], [*PRUNE, "--prune.steps", "0"]]
)
def test_values_are_refused_before_torch_is_imported(arguments, place):
    program = f"import sys; from dap.cli import main; code = main({arguments}); assert 'torch' not in sys.modules"
    program += "; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=place)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


def test_in_a_process_of_its_own(place):
    for arguments in (["study"], [*TRAIN, "--devices", "99"], [*TRAIN, "--train.batch-size", "100000000"]):
        program = f"import sys\nfrom dap.cli import main\nsys.exit(main({arguments}))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=place)
        assert done.returncode in (1, 2)
        assert done.stderr.count("\n") == 1, done.stderr


def test_a_full_disk_is_said_of_the_file(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="report.html") as caught:
        write_atomic(tmp_path / "report.html", b"page")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
