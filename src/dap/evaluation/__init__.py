"""Evaluation of plain models, dense or sparse."""

from dap.evaluation.accuracy import accuracy

__all__ = ["accuracy"]
