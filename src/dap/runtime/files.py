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
    path = _file_behind(path)
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
    """Refuse a folder that cannot be made, before time is spent on what goes there."""
    place = Path(os.path.realpath(out))
    if place.exists() and not place.is_dir():
        raise DapError(f"{out} is a file, and must be a folder: give another name")
    if not place.exists():
        _check_above(place, out)


def check_file(out: str | Path) -> None:
    """The same of a file."""
    _check_above(_file_behind(out), out)


def _file_behind(path: str | Path) -> Path:
    """The file behind a link is written, not the link; and nothing but a file is replaced."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise DapError(f"{place} is no file that can be written: give another name")
    return place


def _check_above(place: Path, out: str | Path) -> None:
    above = next(folder for folder in place.parents if folder.exists())
    if not above.is_dir():
        raise DapError(f"{above} is a file, and {out} cannot be in it: give another name")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DapError(f"{above} cannot be written to: choose another place for {out}")


def check_there(path: str | Path, wanted: str) -> None:
    """Refuse a path that leads nowhere."""
    if not Path(path).exists():
        raise DapError(f"there is no {path}: give {wanted}")


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
