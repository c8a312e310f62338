"""What a file must be: of a size, of a latency, of a sparsity; and the least that is cut for it."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from dap.errors import DapError
from dap.export.ladder import Ladder, Rung
from dap.export.latency import compare

_BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
Write = Callable[[Rung, Path], object]  # a model to a file
OnTry = Callable[[int, int, str], None]  # as `Ladder.first` tells it


class Wish(NamedTuple):
    """At most `value` of bytes or seconds, or of the dense model's seconds; or that share cut."""

    name: Literal["sparsity", "latency", "size"]
    value: float
    relative: bool = False


def parse_size(text: str) -> Wish:
    """In bytes.

    >>> parse_size("20MB").value, parse_size("1.5 KiB").value
    (20000000.0, 1536.0)
    """
    found = re.fullmatch(r"([\d.]+)\s*([kmg]i?b)", text.strip(), re.IGNORECASE)
    if not found:
        raise DapError(f"the size is {text!r}; give it as 20MB, 500KB or 1.5GB")
    return Wish("size", _number(found[1], text) * _BYTES[found[2].upper()])


def parse_latency(text: str) -> Wish:
    """In seconds, or as a share of the dense model's.

    >>> parse_latency("0.5x").relative, parse_latency("30ms").value
    (True, 0.03)
    """
    found = re.fullmatch(r"([\d.]+)\s*(x|ms|s)", text.strip())
    if not found:
        raise DapError(f"the latency is {text!r}; give it as 0.5x (of the dense model's) or as 30ms")
    value = _number(found[1], text)
    return Wish("latency", value / 1000 if found[2] == "ms" else value, found[2] == "x")


def _number(digits: str, text: str) -> float:
    try:
        value = float(digits)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise DapError(f"{text!r} is no number above 0")
    return value


def find(
    ladder: Ladder,
    wish: Wish,
    kind: str,
    write: Write,
    shape: tuple[int, ...],
    threads: int | None = None,
    on_try: OnTry | None = None,
    write_dense: Write | None = None,
) -> Rung:
    """The model that cuts the least of those whose file, which `write` makes in the format `kind`, is as wished.

    A latency is the median of one image of `shape` in ONNX Runtime, measured in turn with the dense model's, whose file
    `write_dense` makes, if it is another kind of file.
    """
    if wish.name == "sparsity":
        return ladder.at(wish.value)
    if wish.name == "size":
        if kind == "dense" or (ladder.channels is None and kind != "safetensors"):
            raise DapError(f"zeros in place make no {kind} file smaller: choose --format safetensors for a size")
        return _within_size(ladder, wish.value, write, on_try)
    if ladder.channels is None:
        raise DapError("zeros in place make no network faster: prune with --allocation flops for a latency")
    if kind != "onnx":
        raise DapError(f"latencies are those of ONNX files, not of {kind}: name the file model.onnx")
    return _within_latency(ladder, wish, (write, write_dense or write), shape, threads, on_try)


def _within_size(ladder: Ladder, limit: float, write: Write, on_try: OnTry | None) -> Rung:
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")

        def fits(rung: Rung) -> bool:
            write(rung, path)
            return path.stat().st_size <= limit

        return ladder.first(fits, on_try)


def _within_latency(
    ladder: Ladder,
    wish: Wish,
    writers: tuple[Write, Write],
    shape: tuple[int, ...],
    threads: int | None,
    on_try: OnTry | None,
) -> Rung:
    write, write_dense = writers
    with TemporaryDirectory() as folder:
        dense, path = Path(folder, "dense.onnx"), Path(folder, "model.onnx")
        write_dense(ladder.base, dense)

        def is_fast(rung: Rung) -> bool:
            write(rung, path)
            times = compare({"dense": dense, "model": path}, shape, threads=threads)
            return times["model"] <= wish.value * (times["dense"] if wish.relative else 1)

        return ladder.first(is_fast, on_try)
