"""Evaluation of plain models, dense or sparse."""

from dap.evaluation.accuracy import Score, accuracy, score
from dap.evaluation.oracle import TargetScore, oracle

__all__ = ["Score", "TargetScore", "accuracy", "oracle", "score"]
