"""What --dry-run prints."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dap.runtime.engine import Engine
    from dap.specs.runs import Spec
    from dap.studies import Study


def dry_run(spec: "Spec", json: bool, engine: "Engine | None" = None, trust_code: bool = False) -> int:
    """Time a few steps of a run and say what to expect of it."""
    from dataclasses import asdict
    from json import dumps

    from dap.runs.rehearsal import rehearse

    found = rehearse(spec, engine, trust_code=trust_code)
    if engine is not None and not engine.first:
        return 0
    seconds = found.decoding + sum(found.seconds.values())
    if json:
        print(dumps({**asdict(found), "total_seconds": seconds}))
        return 0
    parts = {"decoding": found.decoding, **found.seconds}
    _show(seconds, parts, found.memory, found.gpu_memory, found.disk, found.cache)
    return 0


def dry_run_study(study: "Study", runs: list[str], workers: int, json: bool) -> int:
    """The same for the runs of a study that are left to do."""
    from json import dumps

    from dap.runtime.progress import stages
    from dap.studies.rehearsal import rehearse_study

    with stages(quiet=json) as advance:
        found = rehearse_study(
            study, runs, workers, lambda run, number, count: advance("a few steps of each kind", number, count, run)
        )
    if json:
        print(dumps({**found._asdict(), "workers": workers}))
        return 0
    print(f"{found.runs} runs are left to do, by {workers} workers")
    _show(found.seconds, found.work, found.memory, found.gpu_memory, found.disk, found.cache)
    return 0


def _show(seconds: float, parts: dict[str, float], memory: int, gpu: int, disk: int, cache: int) -> None:
    from dap.runtime.progress import duration

    spent = ", ".join(f"{part} {duration(each)}" for part, each in parts.items() if each)
    print(f"time    about {duration(seconds)}" + (f": {spent}" if spent else ""))
    print(f"memory  {in_bytes(memory)}" + (f", on the GPU {in_bytes(gpu)}" if gpu else ""))
    print(f"disk    {in_bytes(disk)}" + (f", and {in_bytes(cache)} of images in the cache" if cache else ""))
    print("nothing was kept: leave --dry-run away to begin")


def in_bytes(count: int) -> str:
    """For people.

    >>> in_bytes(1500), in_bytes(2_500_000_000)
    ('1.5 kB', '2.5 GB')
    """
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
