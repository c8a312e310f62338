"""What every attack of the registry promises, and where it shows up by itself."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dap.cli import main
from dap.config import TrainConfig
from dap.errors import DapError
from dap.evaluation.attacks import Attack, under_attack
from dap.evaluation.pixels import InPixels
from dap.report import all_tables, read_findings, read_records
from dap.report.table import file_name
from dap.runs import EvaluateSpec, TrainSpec, evaluate_run, train_dense
from dap.runs.estimates import Costs, expect
from dap.runs.evaluating import attacks_of
from dap.specs import identity, read
from dap.specs.attacks import ATTACKS, EPSILONS, OPTIONS
from small_studies import small_suite

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # AutoAttack's own
DENSE = TrainSpec(
    str(small_suite()), ("plain",), pixels=32, backbone="small_resnet", weights=None,
    train=TrainConfig(2, 2e-3, batch_size=8, freeze_norms=False),
)  # fmt: skip


@pytest.fixture(params=ATTACKS)
def name(request) -> str:
    if request.param == "auto":
        pytest.importorskip("pyautoattack", reason="needs pyautoattack: pip install 'dap[robustness]'")
    return request.param


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "dense"
    train_dense(DENSE, folder)
    return folder


def made(name: str, severity: int, **options: object) -> Attack:
    spec = replace(EvaluateSpec("run", attacks=(name,), severities=(severity,)), **options)
    return attacks_of(spec)[name][severity]


def victim() -> tuple[InPixels, torch.Tensor, torch.Tensor]:
    """A model of three classes, and images that it has right."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model = InPixels(network, (0.5,) * 3, (0.5,) * 3).eval()
    pixels = torch.rand(6, 3, 8, 8)
    return model, pixels, model(pixels).argmax(1)


@pytest.mark.parametrize("severity", [1, 5])
def test_it_stays_within_epsilon_and_is_the_same_for_a_seed(name, severity):
    if ATTACKS[name].apart is not None and severity != 1:
        pytest.skip("it is slow: one severity shows it")
    model, pixels, labels = victim()
    model.requires_grad_(False)
    state, before = torch.get_rng_state(), pixels.clone()
    found = made(name, severity)(model, pixels, labels, range(6))
    assert found.shape == pixels.shape
    assert (found - pixels).abs().max() <= EPSILONS[severity - 1] + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(found, made(name, severity)(model, pixels, labels, range(6)))
    assert torch.equal(pixels, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_is_no_weaker_than_no_attack(name):
    model, pixels, labels = victim()
    labels[0] = (labels[0] + 1) % 3  # wrong without the attack
    data = {"domain": TensorDataset((pixels - 0.5) / 0.5, labels)}
    found = under_attack(model, data, made(name, 5))["domain"]
    assert (found.clean, found.images) == (5 / 6, 6)
    assert found.accuracy <= found.clean


def test_options_that_it_does_not_take_play_no_part_in_the_id(name):
    spec = EvaluateSpec("run", attacks=(name,))
    assert set(ATTACKS[name].options) <= set(OPTIONS)
    for option, value in {"restarts": 2, "random_start": False, "seed": 1}.items():
        other = replace(spec, **{option: value})
        assert (identity(other) != identity(spec)) == (option in ATTACKS[name].options)


def test_it_is_in_specs_and_in_the_help(name, capsys):
    assert read(EvaluateSpec, {"run": "run", "attacks": [name]}, "evaluate").attacks == (name,)
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert name in re.search(r"--attacks ATTACKS ([\w, ]+), separated by commas", shown)[1].split(", ")  # pyright: ignore


def test_it_is_in_the_estimate(name):
    costs = Costs({}, 1.0, 0.01, 100, 50, 4, 32, 0.0, 0, 0, 0, 0, 0, 0)
    plain = expect(EvaluateSpec(DENSE), costs).seconds["evaluation"]
    every = EvaluateSpec(DENSE, attacks=(name,))
    for spec, share in ((every, 1.0), (replace(every, severities=(2,)), 0.2)):
        attacked = expect(spec, costs).seconds["evaluation"] - plain
        assert attacked == pytest.approx(share * ATTACKS[name].passes * 150 * 0.01)


def test_it_is_in_the_report(name, dense, tmp_path, monkeypatch, capsys):
    entry = ATTACKS[name]
    if entry.apart is not None:  # too slow for a run; what reports do with its numbers does not depend on it
        kind = type(made(name, 1))
        monkeypatch.setattr(kind, "__call__", lambda attack, model, pixels, labels, places: pixels)
    run = tmp_path / "runs" / "dense"
    shutil.copytree(dense, run)
    evaluate_run(EvaluateSpec(str(run), attacks=(name,), severities=(5,), images=2), run / "evaluation-it")
    records = read_records(run.parent)
    findings = read_findings(run.parent, records).robustness
    assert (entry.table, name, "5") in {(one.kind, one.case, one.severity) for one in findings}
    (suite,) = {record.suite for record in records}
    tables = {table.name: table for table in all_tables(records, findings)}
    assert name in {row.cells[0] for row in tables[file_name(entry.table, suite)].rows}
    assert main(["evaluate", str(run), "--attacks", name, "--severities", "5", "--images", "2"]) == 0
    assert f"{name} at severity 5" in capsys.readouterr().out


def test_another_name_is_refused(dense, tmp_path):
    spec = EvaluateSpec(str(dense), attacks=("magic",))
    for refuse in (attacks_of, EvaluateSpec.canonical, lambda one: evaluate_run(one, tmp_path / "out")):
        with pytest.raises(DapError, match=f"there is no attack 'magic'; choose one of {', '.join(ATTACKS)}"):
            refuse(spec)
    assert not (tmp_path / "out").exists()
