"""What runs came to: tables, figures, and a page."""

from dap.report.findings import Findings, read_findings
from dap.report.records import Record, read_records
from dap.report.statistics import Difference, Mean, bootstrap_interval, mean_of, paired
from dap.report.table import Column, Row, Table
from dap.report.tables import all_tables, overview

__all__ = [
    "Column",
    "Difference",
    "Findings",
    "Mean",
    "Record",
    "Row",
    "Table",
    "all_tables",
    "bootstrap_interval",
    "mean_of",
    "overview",
    "paired",
    "read_findings",
    "read_records",
]
