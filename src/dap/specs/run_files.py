"""The JSON files of a run's folder: written with a digest, and read only if they are as they were written. No torch.

Every JSON file has a SHA-256 digest of its own content; every row of a log has a checksum of the row, its place in the
log and the run. A `result.json` also lists the digests of the files that belong to it. Files of earlier versions have
neither: they are read without these checks.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dap.errors import DapError
from dap.runtime.files import write_atomic
from dap.specs.file_names import DENSE, ENVIRONMENT, FAILURE, IMAGES, METRICS, RAW, RESULT, SPEC
from dap.specs.runs import FORMAT, KINDS, Spec, folder_name, identity, read

FILES = "files"  # in a result, the digests of the files that belong to it
_DIGEST, _CHECK = "sha256 of the rest", "crc32 of the rest"
_KEYS = {ENVIRONMENT: ("starts",), IMAGES: (), DENSE: ("identity",), FAILURE: ("error",)}
_KEYS_OF_RESULTS = {
    "train": ("score", "targets"), "best": ("chosen",), "prune": ("dense", "sparse"), "evaluate": ("models", "content"),
}  # fmt: skip
_LARGEST = 2**26  # bytes of a JSON file, and of a row of a log
_NAMED_BY_ID = re.compile(rf"({'|'.join(KINDS)})-[0-9a-f]{{12}}")


class Damaged(DapError):
    """A file of a run is not as it was written."""

    def __init__(self, file: Path, why: str):
        super().__init__(f"{file} is damaged ({why}): remove the run's folder to start again")
        self.file = file


@contextmanager
def intact(file: Path) -> Iterator[None]:
    """Inside, the content of `file` is interpreted: an error there means that the file is damaged."""
    try:
        yield
    except DapError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Damaged(file, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from None


def read_json(file: Path, *keys: str) -> dict[str, Any]:
    """The object in `file`, which must have these keys."""
    values, digest = _load(file)
    if not digest and file.name != SPEC and digest_of_spec(file.parent):
        raise Damaged(file, "it lost its digest")
    if missing := [key for key in keys if key not in values]:
        raise Damaged(file, f"it has no {', '.join(missing)}")
    return values


def _load(file: Path) -> tuple[dict[str, Any], str]:
    """The object, and its digest; "" if it has none."""
    with intact(file):
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST >> 20} MB")
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise TypeError("it does not hold a JSON object")
        digest = values.pop(_DIGEST, None)
        if digest is not None and digest != _digest(values):
            raise ValueError("its content was changed after it was written")
    return values, digest or ""


def digest_of_spec(folder: Path) -> str:
    """Of the run in `folder`, or the one that it is a part of; "" if an earlier version began it, without digests."""
    place = next((place for place in (folder, *folder.parents[:2]) if (place / SPEC).is_file()), None)
    return "" if place is None else _load(place / SPEC)[1]


def write_json(file: Path, values: dict[str, Any]) -> None:
    write_atomic(file, json.dumps({**values, _DIGEST: _digest(values)}, indent=1).encode())


def as_read(values: Any) -> Any:
    """What reading them back will give."""
    return json.loads(json.dumps(values))


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def write_result(folder: Path, result: dict[str, Any], *names: str) -> None:
    """Write the result, with the digests of `names`, the files in `folder` that belong to it."""
    found = {name: _digest_of(folder / name) for name in names}
    write_json(folder / RESULT, {**result, FILES: found} if found else result)


def own(folder: Path, name: str) -> Path:
    """The file `name` in `folder`: an error if it is not the one that the folder's result was written with."""
    file, result = folder / name, folder / RESULT
    if result.is_file() and not _lists(read_json(result), result, file):
        if not file.is_file():
            raise DapError(f"{file} is missing: restore it, or remove the run's folder to start again")
        raise Damaged(file, f"{result} was written with another one")
    return file


def _lists(values: dict[str, Any], result: Path, file: Path) -> bool:
    """Whether `values`, of `result`, say that `file` belongs to it, or nothing about it."""
    with intact(result):
        expected = values.get(FILES, {}).get(file.relative_to(result.parent).as_posix())
    return expected is None or (file.is_file() and expected == _digest_of(file))


def _digest_of(file: Path) -> str:
    if file.suffix == ".json":  # whatever its line endings
        return _digest(read_json(file))
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_spec(folder: str | Path) -> Spec:
    """The specification of the run in `folder`."""
    folder = Path(folder)
    file = folder / SPEC
    if not file.is_file():
        raise DapError(f"no {SPEC} in {folder}: give the folder of a run")
    values, digest = _load(file)
    if not digest:
        own(folder, SPEC)
    with intact(file):
        if values.get("format") != FORMAT or values.get("kind") not in KINDS:
            found = values.get("format", "none")
            raise DapError(f"{file} has format {found}, this version of dap has {FORMAT}: make the run again")
        spec = read(KINDS[values["kind"]], values["spec"], str(file))
        if values.get("id") != identity(spec):  # it leaves open what presets have other values for since
            raise DapError(f"{file} asks for something else in this version of dap: make the run again")
        if _NAMED_BY_ID.fullmatch(folder.name) and folder.name != folder_name(spec):
            raise Damaged(file, f"it is the specification of {folder_name(spec)}")
    return spec


def read_result(folder: str | Path, *keys: str) -> dict[str, Any]:
    """The result of the run in `folder`, which must have these keys and belong to the folder's specification."""
    folder = Path(folder)
    file, spec = folder / RESULT, folder / SPEC
    result = read_json(file, *keys)
    if spec.is_file() and not _lists(result, file, spec):
        raise Damaged(file, "it is the result of another run")
    result.pop(FILES, None)
    return result


def check_run(folder: Path) -> None:
    """Read every JSON file of a run, and its log if it is not done: an error if one is not as it was written."""
    kind = read_spec(folder).kind if (folder / SPEC).is_file() else ""
    for name, keys in _KEYS.items():
        if (folder / name).is_file():
            read_json(own(folder, name), *keys)
    if (folder / RESULT).is_file():
        read_result(folder, *_KEYS_OF_RESULTS.get(kind, ()))
        for file in [*folder.glob(f"*/{RESULT}"), *folder.glob(f"{RAW}/*/{RESULT}")]:
            read_json(own(folder, file.relative_to(folder).as_posix()))
    elif (folder / METRICS).is_file():
        for _ in log_rows(folder / METRICS):
            pass


def row_line(row: dict[str, Any], number: int, run: str) -> str:
    """A line of a log, with a checksum; `number` counts from 1, and `run` is the digest of the run's specification."""
    return json.dumps({**row, _CHECK: _checksum(row, number, run)}) + "\n"


def log_rows(log: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a log, each with its number, 0 for one without a checksum. A damaged line is an error.

    What a kill left of a line is not: the end of a log without a newline. Among rows of earlier versions, which have no
    checksums and come first, it may be any line.
    """
    run = digest_of_spec(log.parent)
    checked, last = bool(run), 0
    with open(log, "rb") as file:
        for place, line in enumerate(iter(lambda: file.readline(_LARGEST), b""), 1):
            try:
                row, check = read_row(line)
                checked = checked or bool(check)
                if checked and check != _checksum(row, last + 1, run):
                    raise ValueError("it is not the row that was written there")
            except ValueError as error:
                if checked and line.endswith(b"\n"):
                    raise Damaged(log, f"line {place}: {error}") from None
                continue
            last += checked
            yield last, row


def read_row(line: bytes) -> tuple[dict[str, Any], str]:
    """The row in a line of a log, and its checksum, which is not compared; "" if it has none."""
    try:
        row = json.loads(line.decode())
        if not isinstance(row, dict):
            raise ValueError("it does not hold a JSON object")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return row, row.pop(_CHECK, "")


def _checksum(row: dict[str, Any], number: int, run: str) -> str:
    return f"{zlib.crc32(f'{run} {number} {json.dumps(row)}'.encode()):08x}"
