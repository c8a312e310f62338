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
    again: bool = False,
    dry_run: bool = False,
    tensorboard: bool = False,
    json: bool = False,
) -> int:
    """Do the runs of a study that are not done yet. What failed before stays failed: see dap study retry.

    A run with a damaged file is done again. What is damaged is kept in the folder `damaged` beside the runs.

    Example: dap study run pacs.yaml --workers 2

    Example: dap study run pacs.yaml --engine ray --address auto --gpus 1

    Args:
        study: a YAML file, see docs/studies.md
        out: the folder for the runs (default: what the file says, else runs/<name>)
        workers: processes on this machine (default: as many as its cores allow for the study's threads)
        retries: how often a run is tried again whose process the system killed
        shard: a part of the runs, as in 2/5, for several machines that know nothing of each other
        engine: local processes, or a ray cluster
        address: of the ray cluster, as ray.init takes it (default: one on this machine)
        gpus: of the ray cluster, for each run
        again: also what failed before, as dap study retry does
        dry_run: time a few steps of every kind of run, and say how long the study will take and what it needs
        tensorboard: draw curves in the folder's tensorboard, for tensorboard --logdir
        json: print the outcomes as one JSON object

    Returns:
        0 if all runs are done, 1 if some are not, 130 if Ctrl-C stopped them
    """
    import os

    from dap.config import check_counts
    from dap.runtime.files import check_folder
    from dap.studies import read_study
    from dap.studies.study import check_targets, keep_file

    if engine != "ray" and (address or gpus):
        raise DapError("address and gpus are of a ray cluster: give --engine ray, too")
    if engine == "ray" and workers is not None:
        raise DapError("workers are processes on this machine: leave --workers out with --engine ray")
    check_counts(workers=workers)
    plan = read_study(study, out)
    check_folder(plan.folder)
    check_targets(plan)
    runs = _part(plan, shard)
    from dap.cli.dry_run import dry_run_study
    from dap.runs.curves import tensorboard as curves
    from dap.studies.status import forget_failure, set_aside, status_of
    from dap.studies.watching import watched

    settled = ("done",) if again else ("done", "failed")
    states = {run: status_of(plan, run).state for run in runs}
    left = [run for run in runs if states[run] not in settled]
    workers = max(1, (os.cpu_count() or 1) // plan.threads) if workers is None else workers
    if dry_run:
        return dry_run_study(plan, plan.again_for(left) + left, workers, json)
    for run in left:
        if states[run] == "damaged":
            set_aside(plan, run)
        forget_failure(plan, run)
    keep_file(plan, study)
    with (
        curves(plan.folder, tensorboard),
        watched(plan, total=len(runs), done=[*states.values()].count("done"), quiet=json) as events,
    ):
        if engine == "ray":
            from dap.studies.cluster import run_on_ray

            run_on_ray(plan, left, address=address, gpus=gpus, retries=retries, events=events)
        else:
            from dap.studies.local import run_locally

            run_locally(plan, left, workers, plan.threads, retries, events)
    return _summary(plan, runs, json)


def study_retry(study: str, **options: Any) -> int:
    """Run a study, and what failed in it once more.

    Example: dap study retry pacs.yaml

    Args:
        study: a YAML file, see docs/studies.md
        options: those of dap study run

    Returns:
        0 if all runs are done, 1 if some are not, 130 if Ctrl-C stopped them
    """
    return study_run(study, again=True, **options)


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
            if row.state in ("failed", "damaged"):
                print(f"- {row.run} {row.state}: {row.error}")
            elif row.state in ("running", "stopped") and row.progress:
                print(f"- {row.run} {row.state}: {row.progress}")
    return int(counts["done"] < len(rows))


def _part(plan: "Study", shard: str | None) -> list[str]:
    if shard is None:
        return list(plan.runs)
    index, _, count = shard.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise DapError(f"shard is {shard!r}; give a part and how many there are, as in 2/5")
    return plan.shard(int(index), int(count))


def _summary(plan: "Study", runs: list[str], json: bool) -> int:
    from json import dumps

    from dap.studies.status import status_of

    found = {run: status_of(plan, run) for run in runs}
    if json:
        print(dumps({"folder": str(plan.folder), "states": {run: row.state for run, row in found.items()}}))
    else:
        done = sum(row.state == "done" for row in found.values())
        print(f"{done} of {len(runs)} runs are done, in {plan.folder}")
        for run, row in found.items():
            if row.state == "failed":
                print(f"- {run} failed: {row.error} (its folder has the traceback; dap study retry tries again)")
            elif row.state == "damaged":
                print(f"- {run} damaged: {row.error}")
    return int(any(row.state != "done" for row in found.values()))
