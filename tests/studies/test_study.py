from pathlib import Path

import pytest

from dap.config import PruneConfig
from dap.errors import DapError
from dap.specs import BestSpec, PruneSpec, TrainSpec, folder_name
from dap.studies import read_study
from dap.studies.grid import expand
from dap.studies.study import check_targets

STUDY = """
name: small
threads: 2
train:
  suite: digits
  target: [outline, plain]
  seed: [0, 1]
  objective: [erm, coral]
  train: {steps: 4}
prune:
  - method: [magnitude, taylor]
    sparsities: [0.5, 0.8]
  - method: dap
    prune: {steps: 6, alpha: [0.0, 1.0], adam_betas: [0.9, 0.99]}
"""


def test_where_runs_go_may_have_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS", str(tmp_path))
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.replace("name: small", "name: small\nout: $RUNS/here"))
    assert read_study(file).folder == tmp_path / "here"


def write(folder: Path, text: str) -> Path:
    (folder / "study.yaml").write_text(text)
    return folder / "study.yaml"


def test_lists_are_a_grid():
    rows = list(expand({"alpha": [0, 1], "steps": [5, 6, 7], "include": ["a*", "b*"]}, PruneConfig))
    assert len(rows) == 6
    assert [row["steps"] for row in rows[:3]] == [5, 6, 7]
    assert all(row["include"] == ["a*", "b*"] for row in rows)  # a list in itself
    assert [row["include"] for row in expand({"include": [["a*"], ["b*"]]}, PruneConfig)] == [["a*"], ["b*"]]
    nested = expand({"train": {"steps": [1, 2]}, "options": {"weight": [0.1, 1.0]}}, TrainSpec)
    assert [(row["train"]["steps"], row["options"]["weight"]) for row in nested] == [
        (1, 0.1), (1, 1.0), (2, 0.1), (2, 1.0),
    ]  # fmt: skip


def test_dense_models_are_shared_and_everything_comes_after_what_it_needs(tmp_path):
    study = read_study(write(tmp_path, STUDY), tmp_path / "out")
    specs = list(study.runs.values())
    dense = [spec for spec in specs if isinstance(spec, TrainSpec)]
    assert len(dense) == 8
    assert len(specs) == 8 + 8 * 4
    assert {spec.threads for spec in specs if isinstance(spec, TrainSpec | PruneSpec)} == {2}
    for run, needs in study.needs.items():
        assert all(list(study.runs).index(need) < list(study.runs).index(run) for need in needs)
    for spec in specs:
        if isinstance(spec, PruneSpec):
            assert spec.dense in dense
            assert isinstance(spec.dense, TrainSpec)
            assert spec.prune.seed == spec.dense.train.seed  # a trial has one seed
            assert spec.sparsities == (0.5, 0.8) or spec.method == "dap"
            assert spec.prune.adam_betas == ((0.9, 0.99) if spec.method == "dap" else (0.9, 0.999))
    assert read_study(tmp_path / "study.yaml").folder == Path("runs/small")


def test_shards_keep_together_what_belongs_together(tmp_path):
    study = read_study(write(tmp_path, STUDY))
    parts = [study.shard(index, 3) for index in (1, 2, 3)]
    assert sorted(run for part in parts for run in part) == sorted(study.runs)
    assert [len(part) for part in parts] == [15, 15, 10]
    for part in parts:
        assert all(need in part for run in part for need in study.needs[run])


def test_a_search_is_a_study_whose_best_is_pruned(tmp_path):
    text = STUDY.replace("  train: {steps: 4}", "  train: {steps: 4}\n  search: {trials: 3, seed: 5}")
    study = read_study(write(tmp_path, text))
    searches = [spec for spec in study.runs.values() if isinstance(spec, BestSpec)]
    assert len(searches) == 8
    first, *others = searches[0].candidates
    assert first.train.learning_rate == 5e-5  # the defaults
    assert len(others) == 2
    assert all(1e-5 <= spec.train.learning_rate <= 10**-3.5 for spec in others)
    assert all(8 <= spec.train.batch_size <= 45 and spec.train.steps == 4 for spec in others)
    assert others[0].options == {}
    assert 0.1 <= searches[1].candidates[1].options["weight"] <= 10  # CORAL's own
    assert read_study(tmp_path / "study.yaml").runs == study.runs
    assert all(isinstance(spec.dense, BestSpec) for spec in study.runs.values() if isinstance(spec, PruneSpec))
    assert len(study.shard(1, 8)) == 3 + 1 + 4


def test_a_search_by_domains_that_are_left_out(tmp_path):
    domains = "[outline, plain, rotated, textured]"
    text = STUDY.replace("objective: [erm, coral]", "objective: erm").replace("seed: [0, 1]", "seed: 0")
    text = text.replace("  train: {steps: 4}", f"  train: {{steps: 4}}\n  search: {{trials: 3, leave_out: {domains}}}")
    study = read_study(write(tmp_path, text))
    outline, plain = (spec for spec in study.runs.values() if isinstance(spec, BestSpec))
    assert outline.left_out == ("plain", "rotated", "textured")  # not the target
    trained = [spec.targets for spec in study.runs.values() if isinstance(spec, TrainSpec)]
    pairs = [("outline", other) for other in outline.left_out] + [("plain", "rotated"), ("plain", "textured")]
    # Without outline and plain is trained once, for either target.
    assert sorted(trained) == sorted(3 * [("outline",), ("plain",), *pairs])
    assert study.needs[folder_name(plain)] == [folder_name(one) for one in plain.trainings]
    with pytest.raises(DapError, match="search.leave_out names no source domain, only outline"):
        read_study(write(tmp_path, text.replace(domains, "[outline]")))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: small", "nam: small", "study.yaml has no option 'nam'; it has name, out, threads, train, model"),
        ("threads: 2", "threads: 0", "threads is 0; it must be a whole number of at least 1"),
        ("  train: {steps: 4}", "  train: {stepz: 4}", "train.train has no option 'stepz'; it has steps"),
        ("  suite: digits\n", "", "train needs suite"),
        ("method: dap", "method: luck", "there is no method 'luck'"),
        ("method: dap", "dense: x", r"prune\[1\] has no option 'dense'"),
        ("{steps: 4}", "{steps: 4", "study.yaml, line 10 is not sound YAML"),
        ("{steps: 4}", "{steps: many}", "train.train.steps is 'many'; it must be a whole number"),
        ("seed: [0, 1]", "seed: [0, x]", "seed is 'x'"),
        ("seed: [0, 1]", "seed: 1.5", "seed is 1.5; it must be a whole number"),
        ("seed: [0, 1]", "seed: []", "study.yaml stands for no run"),
        ("{steps: 4}", "{steps: 4, seed: 1}", "train has both seed and train.seed: leave one out"),
        ("target: [", "targets: [plain]\n  target: [", "train has both target and targets: leave one out"),
        ("{steps: 4}", "{learning_rate: null}", "train.train.learning_rate is None; it must be a number"),
        ("name: small", "out: 5", "out is 5; it must be the name of a folder"),
        ("  suite: digits\n", "  suite: digits\n  root: [a, b]\n", "two runs differ only in root"),
        ("objective: [erm, coral]", "objective: [erm, coral]\n  seed: 3", "'seed' is there twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(old, new, message, tmp_path):
    with pytest.raises(DapError, match=message):
        read_study(write(tmp_path, STUDY.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("target: [", "target: [moon, "),
        ("{steps: 4}", "{steps: 4}\n  search: {trials: 2, leave_out: [moon]}"),
        ("train:\n", "model: {model: resnet18, suite: digits, target: moon}\ntrain:\n"),
    ],
)
def test_a_domain_that_a_benchmark_does_not_have_is_named_before_anything_is_run(old, new, tmp_path):
    study = read_study(write(tmp_path, STUDY.replace(old, new, 1)))  # which a report reads, too
    with pytest.raises(DapError, match="digits has no domain 'moon'; it has outline, plain, rotated, textured"):
        check_targets(study)


def test_no_study(tmp_path):
    with pytest.raises(DapError, match="no file at"):
        read_study(tmp_path / "study.yaml")
    with pytest.raises(DapError, match="holds no study: it needs at least `train:`"):
        read_study(write(tmp_path, "hello"))
    with pytest.raises(DapError, match="the study has no `train:`"):
        read_study(write(tmp_path, "name: x"))


def test_the_projects_own_studies_are_sound():
    files = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))
    studies = {file.stem: read_study(file) for file in files}
    assert len(studies) >= 3
    on_pacs = {name: study for name, study in studies.items() if name.startswith("pacs")}
    results = Path("docs/results/pacs")  # one folder a setting: reports do not mix them
    others = {"pacs-112": "112-pixels", "pacs-resnet50": "resnet50", "pacs-preset": "preset", "pacs-start-2": "start-2"}
    attacked = {f"{name}-attacks": name for name in ("pacs-112", "pacs-resnet50")}
    others |= {attacks: others[name] for attacks, name in attacked.items()}
    assert {name: study.folder for name, study in on_pacs.items()} == dict.fromkeys(on_pacs, results) | {
        name: results / folder for name, folder in others.items()
    }
    assert len(studies["digits-channels"].runs) == 12 * 11  # a training, five methods, with and without fine-tuning
    # What is attacked is what the other study prunes.
    for attacks, name in (attacked | {"pacs-attacks": "pacs-erm"}).items():
        evaluated = {need for run, needs in studies[attacks].needs.items() if run.startswith("eval") for need in needs}
        assert evaluated <= set(studies[name].runs)
