"""What whoever watches a study is told."""

from collections.abc import Callable
from dataclasses import dataclass

from dap.studies.work import Progress


def _nobody(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Events:
    progress: Callable[[str, Progress], None] = _nobody  # the run's name
    ended: Callable[[str, str, str], None] = _nobody  # its name, its outcome, the error
    lost: Callable[[str, int], None] = _nobody  # its name, and how often its process was killed
