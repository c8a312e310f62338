"""Logs as curves: what runs have written to metrics.jsonl, for TensorBoard."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dap.errors import DapError
from dap.specs.file_names import METRICS
from dap.specs.run_files import read_row

CURVES = "tensorboard"
_PAUSE = 2.0  # seconds between looks


@contextmanager
def tensorboard(folder: str | Path, wanted: bool = True) -> Iterator[None]:
    """Inside, logs in `folder` and in the folders of its runs are followed, and drawn in `folder`/tensorboard.

    It reads files, so it does not matter which process or machine is at work. What was drawn before is drawn again.
    """
    if not wanted:
        yield
        return
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise DapError("curves need TensorBoard: pip install 'dap[watch]'") from None
    follower, over = _Follower(Path(folder)), threading.Event()

    def follow() -> None:
        while not over.wait(_PAUSE):
            follower.look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        follower.look()
        follower.close()


class _Follower:
    def __init__(self, folder: Path):
        self.folder = folder
        self.writers: dict[Path, Any] = {}
        self.seen: dict[Path, int] = {}  # bytes of each log

    def look(self) -> None:
        """Draw the lines that are new."""
        for log in [*self.folder.glob(METRICS), *self.folder.glob(f"*/{METRICS}")]:
            with open(log, "rb") as file:
                file.seek(self.seen.get(log, 0))
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self.seen[log] = self.seen.get(log, 0) + len(whole)
            for line in whole.splitlines():
                self._draw(log, line)
        for writer in self.writers.values():
            writer.flush()

    def _draw(self, log: Path, line: bytes) -> None:
        try:
            row, _ = read_row(line)
        except ValueError:  # half a line of a process that was killed
            return
        writer = self._writer(log)
        stage, step = row.pop("stage", ""), row.pop("step", 0)
        row.pop("steps", None)
        for name, value in _numbers(row, stage):
            writer.add_scalar(name, value, step)

    def _writer(self, log: Path) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if log not in self.writers:
            place = self.folder / CURVES / log.parent.relative_to(self.folder)
            for drawn in place.glob("events.out.tfevents.*"):
                drawn.unlink()
            self.writers[log] = SummaryWriter(str(place))
        return self.writers[log]

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        key = f"{prefix}/{name}" if prefix else name
        if isinstance(value, Mapping):
            yield from _numbers(value, key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value)
