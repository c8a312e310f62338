"""Criteria: a score for every maskable weight of a model; the higher, the sooner it is kept."""

from dap.criteria.magnitude import magnitude
from dap.criteria.random import random

CRITERIA = {"magnitude": magnitude, "random": random}

__all__ = ["CRITERIA", "magnitude", "random"]
