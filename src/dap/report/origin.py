"""Where numbers come from: how much of a study is done, with what versions, and the commands to do it again."""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dap.progress import duration
from dap.report.commands import commands_of
from dap.report.records import run_places
from dap.runs.folder import ENVIRONMENT, RESULT, SPEC, intact, read_json, read_spec
from dap.studies import read_study
from dap.studies.status import RunStatus, status
from dap.studies.study import kept_files


@dataclass(frozen=True)
class Origin:
    title: str
    status: str
    commands: tuple[str, ...]
    documents: dict[str, str]  # specification and versions, by title
    finished: bool  # nothing is left to wait for


def origin_of(folder: str | Path) -> Origin:
    """Of a study's folder, or of one run's."""
    folder = Path(folder)
    places = run_places(folder)
    done = sum((place / RESULT).is_file() for place in places)
    report = shlex.join(["dap", "report", str(folder)])
    if files := kept_files(folder):
        studies = [read_study(file, folder) for file in files]
        text, finished = _progress({row.run: row for study in studies for row in status(study)}.values())
        again = [shlex.join(["dap", "study", "run", str(file), "--out", str(folder)]) for file in files]
        documents = {file.name: file.read_text() for file in files}
        title = ", ".join(dict.fromkeys(study.name for study in studies))
        return Origin(title, text, (*again, report), documents | _times(places) | _versions(places), finished)
    single = (folder / SPEC).is_file()
    text = f"{done} of {len(places)} {'run is' if len(places) == 1 else 'runs are'} done."
    documents = {SPEC: (folder / SPEC).read_text()} if single else {}
    title = folder.absolute().name
    again = commands_of(read_spec(folder), folder.parent / f"{title}-again") if single else []
    return Origin(
        title, text, (*again, report), documents | _times(places) | _versions(places), 0 < done == len(places)
    )


def _progress(rows: Collection[RunStatus]) -> tuple[str, bool]:
    states = Counter(row.state for row in rows)
    text = f"{states['done']} of {len(rows)} runs are done."
    others = ", ".join(f"{count} {state}" for state, count in states.items() if state != "done")
    if others:
        text += f" What is missing is shown as missing: {others}."
    if failed := [row for row in rows if row.state == "failed"]:
        text += f" The first failure: {failed[0].run}: {failed[0].error}"
    return text, not any(states[state] for state in ("waiting", "running", "stopped"))


def _times(places: list[Path]) -> dict[str, str]:
    """What finished runs took, by what they did."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for place in places:
        if (place / RESULT).is_file() and (file := place / ENVIRONMENT).is_file():
            with intact(file):
                if (seconds := read_json(file).get("seconds")) is not None:
                    spec = read_spec(place)
                    found[f"{spec.kind} {getattr(spec, 'method', '')}".strip()].append(float(seconds))
    lines = [
        f"{kind}: {len(times)} × {duration(sum(times) / len(times))} (longest {duration(max(times))})"
        for kind, times in found.items()
    ]
    return {"Time that runs took": "\n".join(lines)} if lines else {}


def _versions(places: list[Path]) -> dict[str, str]:
    """Each environment that runs began in, and how many did."""
    found: Counter[str] = Counter()
    for place in places:
        if (file := place / ENVIRONMENT).is_file():
            with intact(file):
                found.update(json.dumps(start, indent=1) for start in read_json(file)["starts"])
    several = len(found) > 1
    return {
        f"Versions and machine{f' ({count} runs)' if several else ''}{' ' * number}": text  # titles are unique
        for number, (text, count) in enumerate(found.most_common())
    }
