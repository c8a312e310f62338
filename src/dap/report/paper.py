"""The numbers that the paper on domain-aware pruning publishes, to be set beside our own, never mixed with them."""

import json
from collections.abc import Collection
from pathlib import Path

from dap.report.table import Column, Row, Table


def published(suites: Collection[str]) -> list[Table]:
    """The paper's main table, and its tables about any of these suites; cells are as printed there.

    >>> [table.name for table in published(["VLCS"])]
    ['published-suites', 'published-domains-vlcs']
    """
    found = []
    for values in json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8")):
        if not values["suites"] or set(values["suites"]) & set(suites):
            rows = tuple(Row(tuple(cell or None for cell in row)) for row in values["rows"])
            columns = tuple(Column(title) for title in values["columns"])
            note = f"As published. {values['note']}".strip()
            found.append(Table(values["name"], f"Published: {values['title']}", note, columns, rows))
    return found
