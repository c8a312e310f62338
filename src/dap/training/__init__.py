"""Dense training and fine-tuning: one step, the loop, SWAD, selection, norms."""

from dap.training.loop import Dense, finetune, train
from dap.training.step import Trainer

__all__ = ["Dense", "Trainer", "finetune", "train"]
