"""Where numbers come from: how much of a study is done, with what versions, and the commands to do it again."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dap.report.commands import commands_of
from dap.report.records import run_places
from dap.report.table import Column, Row, Table
from dap.runtime.progress import duration
from dap.specs.file_names import ENVIRONMENT, RESULT, SPEC
from dap.specs.run_files import intact, read_json, read_spec
from dap.studies import read_study
from dap.studies.status import RunStatus, status
from dap.studies.study import kept_files


@dataclass(frozen=True)
class Origin:
    title: str
    status: str
    commands: tuple[str, ...]
    documents: dict[str, str]  # specifications, by title
    finished: bool  # nothing is left to wait for
    tables: tuple[Table, ...] = ()  # times and versions


def origin_of(folder: str | Path) -> Origin:
    """Of a study's folder, or of one run's."""
    folder = Path(folder)
    places = run_places(folder)
    done = sum((place / RESULT).is_file() for place in places)
    report = shlex.join(["dap", "report", str(folder)])
    tables = tuple(table for table in (_times(places), _versions(places)) if table is not None)
    if files := kept_files(folder):
        studies = [read_study(file, folder) for file in files]
        text, finished = _progress({row.run: row for study in studies for row in status(study)}.values())
        again = [shlex.join(["dap", "study", "run", str(file), "--out", str(folder)]) for file in files]
        documents = {file.name: file.read_text() for file in files}
        title = ", ".join(dict.fromkeys(study.name for study in studies))
        return Origin(title, text, (*again, report), documents, finished, tables)
    single = (folder / SPEC).is_file()
    text = f"{done} of {len(places)} {'run is' if len(places) == 1 else 'runs are'} done."
    documents = {SPEC: (folder / SPEC).read_text()} if single else {}
    title = folder.absolute().name
    again = commands_of(read_spec(folder), folder.parent / f"{title}-again") if single else []
    return Origin(title, text, (*again, report), documents, 0 < done == len(places), tables)


def _progress(rows: Collection[RunStatus]) -> tuple[str, bool]:
    states = Counter(row.state for row in rows)
    text = f"{states['done']} of {len(rows)} runs are done."
    others = ", ".join(f"{count} {state}" for state, count in states.items() if state != "done")
    if others:
        text += f" What is missing is shown as missing: {others}."
    if failed := [row for row in rows if row.state == "failed"]:
        text += f" The first failure: {failed[0].run}: {failed[0].error}"
    return text, not any(states[state] for state in ("waiting", "running", "stopped"))


def _times(places: Sequence[Path]) -> Table | None:
    """What finished runs took, by what they did."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for place in places:
        if (place / RESULT).is_file() and (file := place / ENVIRONMENT).is_file():
            with intact(file):
                if (seconds := read_json(file).get("seconds")) is not None:
                    spec = read_spec(place)
                    found[f"{spec.kind} {getattr(spec, 'method', '')}".strip()].append(float(seconds))
    rows = [
        Row((kind, str(len(times)), duration(fmean(times)), duration(max(times)), duration(sum(times))))
        for kind, times in sorted(found.items())
    ]
    columns = tuple(map(Column, ("what", "runs", "on average", "longest", "in all")))
    note = "Wall-clock time of finished runs, pauses and what else the machine did included."
    return Table("times", "What runs took", note, columns, tuple(rows)) if rows else None


def _versions(places: Sequence[Path]) -> Table | None:
    """The machines and packages that runs began with."""
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for place in places:
        if (file := place / ENVIRONMENT).is_file():
            with intact(file):
                for start in read_json(file)["starts"]:
                    machine = start["machine"]
                    packages = ", ".join(f"{name} {version}" for name, version in start["packages"].items())
                    devices = ", ".join(machine["gpus"]) or "–"
                    git = start["git"] or {"commit": "unknown", "changed": False}
                    key = (machine["processor"], str(machine["cores"]), devices, start["python"], packages)
                    found[key].append(f"{git['commit']}{' and changes' if git['changed'] else ''}")
    rows = [
        Row((str(len(commits)), *key, str(len(set(commits)))))
        for key, commits in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    columns = tuple(map(Column, ("starts", "processor", "cores", "GPUs", "Python", "packages", "commits")))
    note = "Every run has its own in environment.json, with the commit."
    return Table("versions", "Versions and machines", note, columns, tuple(rows)) if rows else None
