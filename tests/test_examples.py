"""What the docs show must run."""

import doctest
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dap
import measures
from conftest import make_batches, make_model
from dap.config import PruneConfig
from data.small_suites import make_folder

ROOT = Path(__file__).parents[1]
MODULES = [module.name for module in pkgutil.walk_packages(dap.__path__, "dap.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_folder(Path("pets"), {domain: {"cat": 5, "dog": 5} for domain in ("day", "night")})
    found = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch, "nn": nn, "tmp": tmp_path})
    assert found.failed == 0


def test_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    examples = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert examples > 20


@pytest.mark.parametrize("page", ["README.md", "docs/custom-model.md"])
def test_python_in_the_docs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {name: TensorDataset(*batch) for name, batch in make_batches(size=40).items()}
    art, photo, sketch = data.values()
    names = {"model": make_model("tied"), "held_out": data, "art": art, "photo": photo, "sketch": sketch}
    names |= {"dataset_a": art, "dataset_b": photo, "dataset_c": sketch}
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    exec(code, names)
    assert dap.Masks.load("masks.safetensors").total > 0


@pytest.mark.parametrize(
    ("page", "heading", "registry", "contract"),
    [
        ("robustness", "### Adding an attack", "specs/attacks.py", "test_attack_contract.py"),
        ("pruning", "### Adding a criterion", "specs/methods.py", "test_criteria.py"),
    ],
)
def test_an_addition_is_one_file_and_one_line(page, heading, registry, contract, tmp_path):
    """In a copy of the package, the addition passes the contract tests of its registry."""
    section = (ROOT / "docs" / f"{page}.md").read_text().split(heading)[1]
    file, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    assert line.count("\n") == 1
    assert file.count("\n") < 40
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / file.splitlines()[0].removeprefix("# ")).write_text(file)
    table = tmp_path / "src" / "dap" / registry
    entries = re.compile(r"^([A-Z]+: dict\[.+?\] = \{\n.*?)^\}", re.MULTILINE | re.DOTALL)
    text, found = entries.subn(rf"\g<1>{line}}}", table.read_text())
    assert found == 1
    table.write_text(text)
    name = line.split('"')[1]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", name, f"tests/contracts/{contract}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_adding_a_measure_of_sensitivity(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = {name: TensorDataset(*batch) for name, batch in make_batches(size=40).items()}
    code, _ = measures.examples()
    assert len(code.splitlines()) < 40
    with measures.registered():
        exec(code, names := {"model": make_model("tied"), "sources": sources})
    assert names["path"].pruner.measure.__name__ == "Vote"
    assert dap.Masks.load("masks.safetensors").sparsity > 0.5


def _anchors(page):
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_the_docs():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(other), f"{page.name}: {target}#{anchor}"


def test_the_table_of_options_is_what_presets_have():
    configs = [PruneConfig().resolved(), PruneConfig().resolved(channels=True), PruneConfig("paper").resolved()]
    section = (ROOT / "docs" / "pruning.md").read_text().split("## Options of mask learning")[1].split("## ")[0]
    rows = re.findall(r"^\| (`.+`) \| [^|]+ \| (.+) \| (.+) \| (.+) \|$", section, re.MULTILINE)
    found = {name: cells for name, *cells in rows}
    assert len(found) >= 10
    for name, cells in found.items():
        for cell, config in zip(cells, configs, strict=True):
            values = [attrgetter(part)(config) for part in re.findall(r"`(.+?)`", name)]
            values = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
            without = config.coefficient == "paper" and name.startswith("`paced.")
            assert cell == ("–" if without else ", ".join(f"{value:g}" for value in values)), name


def test_demo(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--dense-steps", "2", "--steps", "8"]
    command += ["--images", "1", "--sparsities", "0.8", "--threads", "1", "--out", str(tmp_path / "demo")]
    environment = {**os.environ, "COLUMNS": "100"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for word in ("Dense", "DAP", "Magnitude", "Random", "80 %"):
        assert word in result.stdout
    page = tmp_path / "demo" / "report.html"
    assert result.stdout.splitlines()[-1] == f"the page is {page}"
    assert "<title>Handwritten digits, rotated unseen</title>" in page.read_text()
    assert (tmp_path / "demo" / "files" / "accuracy-and-sparsity.svg").exists()


def test_examples_are_short():
    for example in ROOT.glob("examples/*.py"):
        assert len(example.read_text().splitlines()) < 60, example.name
