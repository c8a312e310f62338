"""Evaluation of plain models, dense or sparse."""

from dap.evaluation.accuracy import Score, accuracy, score

__all__ = ["Score", "accuracy", "score"]
