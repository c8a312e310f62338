"""dap study …: many runs from one file."""

from typing import TYPE_CHECKING, Any, Literal

from dap.errors import DapError

if TYPE_CHECKING:
    from dap.studies import Study


def study_run(
    study: str,
    out: str | None = None,
    workers: int | None = None,
    retries: int = 3,
    shard: str | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    gpus: float = 0.0,
    json: bool = False,
) -> int:
    """Do the runs of a study that are not done yet. What failed before stays failed: see dap study retry.

    Example: dap study run pacs.yaml --workers 2

    Args:
        study: a YAML file, see docs/studies.md
        out: the folder for the runs (default: what the file says, else runs/<name>)
        workers: processes on this machine (default: as many as its cores allow for the study's threads)
        retries: how often a run is tried again whose process the system killed
        shard: a part of the runs, as in 2/5, for several machines that know nothing of each other
        engine: local processes, or a ray cluster
        address: of the ray cluster, as ray.init takes it (default: one on this machine)
        gpus: of the ray cluster, for each run
        json: print the outcomes as one JSON object

    Returns:
        0 if all runs are done, 1 if some are not, 130 if Ctrl-C stopped them
    """
    from dap.studies import read_study

    plan = read_study(study, out)
    return _work(plan, _part(plan, shard), workers, retries, engine, address, gpus, json)


def study_retry(
    study: str,
    out: str | None = None,
    workers: int | None = None,
    retries: int = 3,
    shard: str | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    gpus: float = 0.0,
    json: bool = False,
) -> int:
    """Forget the failures of a study, and run it again.

    Example: dap study retry pacs.yaml

    Args:
        study: a YAML file, see docs/studies.md
        out: the folder for the runs (default: what the file says, else runs/<name>)
        workers: processes on this machine (default: as many as its cores allow for the study's threads)
        retries: how often a run is tried again whose process the system killed
        shard: a part of the runs, as in 2/5, for several machines that know nothing of each other
        engine: local processes, or a ray cluster
        address: of the ray cluster, as ray.init takes it (default: one on this machine)
        gpus: of the ray cluster, for each run
        json: print the outcomes as one JSON object

    Returns:
        0 if all runs are done, 1 if some are not, 130 if Ctrl-C stopped them
    """
    from dap.studies import read_study
    from dap.studies.status import forget_failure

    plan = read_study(study, out)
    runs = _part(plan, shard)
    for run in runs:
        forget_failure(plan, run)
    return _work(plan, runs, workers, retries, engine, address, gpus, json)


def study_status(study: str, out: str | None = None, json: bool = False) -> int:
    """What has become of the runs of a study.

    Example: dap study status pacs.yaml

    Args:
        study: a YAML file, see docs/studies.md
        out: the folder of the runs (default: what the file says, else runs/<name>)
        json: print one JSON object

    Returns:
        0 if all runs are done, 1 if some are not
    """
    from collections import Counter
    from dataclasses import asdict
    from json import dumps

    from dap.studies import read_study
    from dap.studies.status import status

    plan = read_study(study, out)
    rows = status(plan)
    counts = Counter(row.state for row in rows)
    if json:
        print(dumps({"study": plan.name, "folder": str(plan.folder), "runs": [asdict(row) for row in rows]}))
    else:
        print(f"{plan.name}: {len(rows)} runs, " + ", ".join(f"{count} {state}" for state, count in counts.items()))
        for row in rows:
            if row.state == "failed":
                print(f"- {row.run} failed: {row.error}")
    return int(counts["done"] < len(rows))


def _part(plan: "Study", shard: str | None) -> list[str]:
    if shard is None:
        return list(plan.runs)
    index, _, count = shard.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise DapError(f"shard is {shard!r}; give a part and how many there are, as in 2/5")
    return plan.shard(int(index), int(count))


def _work(
    plan: "Study",
    runs: list[str],
    workers: int | None,
    retries: int,
    engine: str,
    address: str | None,
    gpus: float,
    json: bool,
) -> int:
    from json import dumps

    from dap.studies.status import status_of
    from dap.studies.watching import watched

    before = {run: status_of(plan, run) for run in runs}
    left = [run for run in runs if before[run].state not in ("done", "failed")]
    with watched(plan, total=len(runs), done=len(runs) - len(left), quiet=json) as events:
        outcomes = _engine(plan, left, workers, retries, engine, address, gpus, events)
    after = {run: status_of(plan, run) for run in runs}
    states = {run: found.state for run, found in after.items()}
    failed = [run for run, state in states.items() if state == "failed"]
    if json:
        print(dumps({"folder": str(plan.folder), "outcomes": outcomes, "states": states}))
    else:
        done = sum(state == "done" for state in states.values())
        print(f"{done} of {len(runs)} runs are done, in {plan.folder}")
        for run in failed:
            print(f"- {run} failed: {after[run].error} (its folder has the traceback; dap study retry tries again)")
    return int(any(state != "done" for state in states.values()))


def _engine(
    plan: "Study",
    runs: list[str],
    workers: int | None,
    retries: int,
    engine: str,
    address: str | None,
    gpus: float,
    events: Any,
) -> dict[str, str]:
    import os

    if engine == "ray":
        from dap.studies.cluster import run_on_ray

        return run_on_ray(plan, runs, address=address, gpus=gpus, retries=retries, events=events)
    from dap.studies.local import run_locally

    workers = workers or max(1, (os.cpu_count() or 1) // plan.threads)
    if workers < 1:
        raise DapError(f"workers is {workers}; it must be at least 1")
    return run_locally(plan, runs, workers, plan.threads, retries, events)
