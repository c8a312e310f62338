"""Many runs from one file: expanded, done once, shared, resumed."""

from dap.studies.study import Study, read_study

__all__ = ["Study", "read_study"]
