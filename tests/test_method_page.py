"""docs/method.md leads from every numbered equation of the paper to the function that computes it."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "method.md"
ROW = re.compile(r"^\| (\d+) \|.*\| \[`([^`]+)`\]\(([^)]+)\), `([\w.]+)` \|$", re.M)
ROWS = [(int(number), shown, link, function) for number, shown, link, function in ROW.findall(PAGE.read_text())]


def source_of(file: Path, function: str) -> str | None:
    """The source of a function or of a class's method, `Class.method`; None if there is none."""
    text = file.read_text()
    scope: ast.AST = ast.parse(text)
    for name in function.split("."):
        named = (node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == name)
        found = next(named, None)
        if found is None:
            return None
        scope = found
    return ast.get_source_segment(text, scope) if isinstance(scope, ast.FunctionDef) else None


def test_every_equation_has_one_row():
    assert [number for number, *_ in ROWS] == list(range(1, 18))


@pytest.mark.parametrize(("number", "shown", "link", "function"), ROWS)
def test_a_row_leads_to_the_function_that_computes_the_equation(number, shown, link, function):
    file = PAGE.parent / link
    assert link == f"../src/dap/{shown}"
    assert file.is_file()
    source = source_of(file, function)
    assert source is not None, f"{shown} has no function {function}"
    assert f"(eq. {number})" in source


def test_the_code_numbers_only_equations_of_the_paper():
    source = PAGE.parents[1] / "src" / "dap"
    numbers = {int(n) for file in source.rglob("*.py") for n in re.findall(r"\(eq\. (\d+)\)", file.read_text())}
    assert numbers == set(range(1, 18))
