"""What runs came to, side by side."""

from dap.report.records import Record, read_records
from dap.report.table import Cell, Table, make_table

__all__ = ["Cell", "Record", "Table", "make_table", "read_records"]
