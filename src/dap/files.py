"""Files that are whole or not there, and names that hold on every machine."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from dap.errors import DapError


def expanded(path: str | Path) -> Path:
    """With ~ and $NAME replaced: a specification that says $DAP_SHARED/data is the same on every machine.

    >>> os.environ["IMAGES"] = "/somewhere"
    >>> expanded("$IMAGES/PACS").as_posix()
    '/somewhere/PACS'
    """
    whole = os.path.expandvars(os.path.expanduser(path))
    if (absent := re.search(r"\$\{?(\w+)", whole)) and not os.path.exists(whole):
        raise DapError(f"{path} speaks of {absent[1]}, which the environment does not have: export {absent[1]}=…")
    return Path(whole)


_sync: ContextVar[Callable[[], None]] = ContextVar("sync", default=lambda: None)


@contextmanager
def syncing_first(sync: Callable[[], None]) -> Iterator[None]:
    """Inside, `sync` is called before any file is put in place: what a log holds is on disk before what relies on it.

    >>> with syncing_first(lambda: print("log")):
    ...     write_atomic(tmp / "checkpoint", b"state")
    log
    """
    token = _sync.set(sync)
    try:
        yield
    finally:
        _sync.reset(token)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it at the end: a reader never meets half a file.

    >>> with replacing(tmp / "result.txt") as temporary:
    ...     temporary.write_text("whole")
    5
    """
    path = Path(os.path.realpath(path))  # the file behind a link is written, not the link
    if path.exists() and not path.is_file():
        raise DapError(f"{path} is no file that can be written: give another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp's files are private; a result is not
        _sync.get()()
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if found := re.search(r"\(os error (\d+)\)", str(error)):  # safetensors has errors of its own for a full disk
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
        if isinstance(error, OSError) and error.errno and error.filename in (None, name):  # as of a full disk
            error.filename = str(path)
        raise


def check_inside(folder: str | Path, path: str | Path) -> None:
    """Refuse to write where a link leads out of `folder`, which may itself be a link, to another disk say."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise DapError(f"{path} leads out of {folder} through a link: remove the link, or put what it leads to there")


def check_folder(out: str | Path) -> None:
    """Refuse a folder that cannot be made because a file is in its place."""
    for place in (Path(out), *Path(out).parents):
        if place.exists() and not place.is_dir():
            raise DapError(f"{place} is a file, and {out} must be a folder: give another name")


def check_readable(path: str | Path) -> None:
    """An error of the system, not of a parser: what cannot be read now is not damaged."""
    with open(path, "rb") as file:
        file.read(1)


def write_atomic(path: str | Path, data: bytes, *, inside: str | Path | None = None) -> None:
    """Write a whole file; if `inside` is given, only in that folder: see `check_inside`."""
    if inside is not None:
        check_inside(inside, path)
    with replacing(path) as temporary:
        temporary.write_bytes(data)
