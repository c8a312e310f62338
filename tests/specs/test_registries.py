"""What a registry knows is asked of its entries: no module asks for one by its name."""

import ast
from pathlib import Path

import pytest

import dap
from dap.specs.attacks import ATTACKS
from dap.specs.methods import METHODS

SOURCE = Path(dap.__file__).parent
REGISTRIES = {"specs/attacks.py", "specs/methods.py"}
NAMES = {*METHODS, *ATTACKS} - {"auto"}  # also what devices are called that are found


def asked(tree: ast.AST) -> set[str]:
    """Names that are compared with, or looked up."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id.isupper():
            sides = [node.slice]
        else:
            continue
        found |= {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)} & NAMES
    return found


def test_what_counts_as_asking():
    for code in ('method == "agnostic"', 'method in ("dap", "agnostic")', 'METHODS["dap"].title', '"pgd" in attacks'):
        assert asked(ast.parse(code)), code
    assert not asked(ast.parse('prune(model, method="dap")'))


@pytest.mark.parametrize("file", sorted(file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py")))
def test_no_module_asks_by_name(file):
    if file not in REGISTRIES:
        assert not asked(ast.parse((SOURCE / file).read_text()))
