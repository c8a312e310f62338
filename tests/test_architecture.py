"""Imports point one way, down the table of rooms in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dap"


def table() -> dict[str, set[str]]:
    """By room, in the order of the page, the rooms that it may import."""
    rows = re.findall(r"^\| `(\w+)/?` \|[^|]*\|([^|]*)\|[^|]*\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


def imported_rooms(file: Path) -> set[str]:
    """The rooms that a module imports, wherever in it the import is."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("dap.")}


MODULES = sorted(file for file in SOURCE.rglob("*.py") if file != SOURCE / "__init__.py")


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_the_table_has_every_room_and_points_one_way():
    rooms = table()
    assert set(rooms) == {room_of(file) for file in MODULES}
    above: set[str] = set()
    for room, allowed in rooms.items():
        assert allowed <= above, f"{room} may import what stands below it"
        above.add(room)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_a_module_imports_what_the_table_allows(file):
    room = room_of(file)
    assert imported_rooms(file) - {room} <= table()[room]


def test_the_table_allows_nothing_that_no_module_needs():
    used: dict[str, set[str]] = {}
    for file in MODULES:
        used.setdefault(room_of(file), set()).update(imported_rooms(file) - {room_of(file)})
    assert used == table()
