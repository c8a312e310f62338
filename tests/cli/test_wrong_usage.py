"""Wrong usage of every verb: one line that names the thing, a code that is not 0, and nothing left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dap.cli import main

QUICK = ["--backbone", "small_resnet", "--weights", "null", "--train.freeze-norms", "false"]
TRAIN = ["train", "digits", "--out", "new", "--targets", "plain", *QUICK]
PRUNE = ["prune", "elsewhere", "--out", "new"]
OWN = ["prune", "a.b:c", "--suite", "digits", "--out", "new"]
EVALUATE, EXPORT = ["evaluate", "elsewhere"], ["export", "elsewhere", "--out", "new"]
RUN, STATUS, REPORT = ["study", "run"], ["study", "status"], ["report"]
BOMBS = ("laughs.yaml", "merged.yaml", "itself.yaml", "chain.yaml")  # aliases that stand for more than memory holds

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
    *(
        ([*TRAIN, "--config", name], f"--config {name}")
        for name in ("binary", "deep.yaml", "gone.yaml", "list.yaml", "nul.yaml", ".", *BOMBS)
    ),
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
    ([*EVALUATE, "--severities", "0"], "severities"),
    ([*EVALUATE, "--severities", ","], "severities"),
    ([*EVALUATE, "--images", "0"], "images"),
    ([*EVALUATE, "--restarts", "0"], "restarts"),
    (["evaluate", ""], "run"),
    (["evaluate", "file"], "file"),
    (EXPORT, "elsewhere"),
    ([*EXPORT, "--format", "zip"], "format"),
    ([*EXPORT, "--dtype", "int3"], "dtype"),
    ([*EXPORT, "--threads", "-1"], "threads"),
    (["export", "empty", "--out", "new", "--max-size", "huge"], "huge"),
    (["export", "empty", "--out", "new", "--target-latency", "soon"], "soon"),
    ([*EXPORT, "--int8"], "int8"),
    ([*EXPORT, "--sparsity", "0.5", "--max-size", "1MB"], "choose one"),
    (["predict", "gone.onnx", "x.png"], "gone.onnx"),
    (["predict", "file", "x.png"], "x.png"),
    (["predict", "file", "file"], "file"),
    (["predict", "file", "file", "--threads", "-1"], "threads"),
    # ---- where results go: folders, and files
    *(
        ([*words, option, value], named)
        for words, option in (
            (TRAIN, "--out"),
            (PRUNE, "--out"),
            (["evaluate", "file"], "--out"),
            ([*RUN, "study.yaml"], "--out"),
            (["report", "empty"], "--files"),
        )
        for value, named in {
            "": "is empty",
            "a\0b": "NUL",
            "file": "must be a folder",
            "file/below": "cannot be in it",
        }.items()
    ),
    *(
        ([*words, "--out", value], named)
        for words in (["export", "empty"], ["report", "empty"])
        for value, named in {
            "": "out is empty",
            "a\0b": "NUL",
            "empty": "is no file",
            "file/below": "cannot be in it",
        }.items()
    ),
    # ---- studies, reports, data
    *(
        ([*words, name], name)
        for words in (RUN, STATUS, ["study", "retry"])
        for name in ("gone.yaml", "binary", "deep.yaml", "nul.yaml", "list.yaml", "wrong.yaml", "empty", *BOMBS)
    ),
    *(([*words, "many.yaml"], "threads, seed, pixels stand for") for words in (RUN, STATUS)),
    ([*RUN, "study.yaml", "--workers", "0"], "workers"),
    ([*RUN, "study.yaml", "--shard", "3/2"], "shard"),
    ([*RUN, "study.yaml", "--gpus", "1"], "gpus"),
    ([*RUN, "study.yaml", "--engine", "spark"], "engine"),
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
    start = "train: {suite: digits, target: plain}\nprune:\n  prune:\n    adam_betas: &a0 [0.9, 0.9]\n"
    lists = "".join(f"    a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    (folder / "laughs.yaml").write_text(start + lists)
    merges = "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12))
    (folder / "merged.yaml").write_text(f"a0: &a0 {{threads: 1}}\n{merges}")
    (folder / "itself.yaml").write_text("train: &train\n  suite: digits\n  options: [*train]\n")
    chain = "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 900))
    (folder / "chain.yaml").write_text(f"a0: &a0 [1]\n{chain}")
    choices = "".join(f"  {name}: [{','.join(map(str, range(1, 1000)))}]\n" for name in ("seed", "pixels", "threads"))
    (folder / "many.yaml").write_text(f"train:\n  suite: digits\n  target: plain\n{choices}")
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


def in_a_process(arguments: list[str], place: Path, **options) -> subprocess.CompletedProcess[str]:
    program = "import sys; from dap.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *arguments], text=True, cwd=place, **options)


def test_values_are_refused_before_torch_is_imported(place):
    early = [
        *([*TRAIN, "--train.steps", "-5"], [*TRAIN, "--threads", "-1"], [*TRAIN, "--targets", "plain,plain"]),
        *([*PRUNE, "--prune.steps", "0"], [*PRUNE, "--out", "file"], [*RUN, "deep.yaml"], [*RUN, "many.yaml"]),
        *([*RUN, "study.yaml", "--out", "file"], [*RUN, "study.yaml", "--workers", "0"], [*REPORT, "gone"]),
        *([*REPORT, "empty", "--out", "empty"], EVALUATE, [*EVALUATE, "--severities", "9"]),
        *([*EVALUATE, "--attacks", "luck"], ["evaluate", "file", "--out", "file"], EXPORT, [*EXPORT, "--int8"]),
        *([*EXPORT, "--threads", "0"], ["export", "empty", "--out", "empty"]),
        *(
            ["predict", "gone.onnx", "file"],
            ["predict", "file", "gone.png"],
            ["predict", "file", "file", "--threads=0"],
        ),
    ]
    program = (
        "import json, sys; from dap.cli import main\n"
        "for arguments in json.load(sys.stdin):\n"
        "    assert main(arguments) == 1 and 'torch' not in sys.modules, arguments"
    )
    options = {"input": json.dumps(early), "capture_output": True, "text": True, "cwd": place}
    done = subprocess.run([sys.executable, "-c", program], **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == len(early)


@pytest.mark.parametrize("arguments", [["study"], [*TRAIN, "--devices", "99"]], ids=["no verb", "too many devices"])
def test_in_a_process_of_its_own(arguments, place):
    done = in_a_process(arguments, place, capture_output=True)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["completion", "bash"]], ids=lambda words: words[0])
def test_output_that_nobody_takes(arguments, unbuffered, place):
    """A full disk is one line, a reader that has left at most one, without a traceback."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = in_a_process(arguments, place, stdout=full, stderr=subprocess.PIPE, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("dap: ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)
    done = in_a_process(arguments, place, stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    assert done.returncode in (1, 141)
    assert done.stderr in ("", "dap: Broken pipe\n")


def test_help_is_there_at_once(place):
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        assert in_a_process(["--help"], place, stdout=subprocess.DEVNULL).returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5
