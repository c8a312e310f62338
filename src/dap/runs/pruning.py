"""Pruning as a run: the same folder whatever the method, so that whoever reads it need not know which one it was.

spec.json  result.json           of the whole run
0.8/masks.safetensors            what is kept at 80 %
0.8/model.safetensors            the sparse model, where weights moved; else the masks and the dense model make it
0.8/result.json                  its numbers; it is written last
raw/0.8/…                        the same of raw masks, where they were asked for
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from dap.criteria import Calibration, News
from dap.criteria.prune import Pruned, prune
from dap.errors import DapError
from dap.evaluation import accuracy
from dap.evaluation.pixels import Joined
from dap.masks.attach import bake
from dap.masks.masks import Masks
from dap.models import ModelCard, load_classifier
from dap.runs.folder import Metrics, finished, read_metrics, working_in
from dap.runs.opening import Opened, is_there, load_model, open_dense, place_of, save_model, settled, suite_pruned
from dap.runs.sources import Sources, on_targets
from dap.runs.trust import names_its_model
from dap.runtime.checkpoints import fingerprint
from dap.runtime.engine import Engine, threads
from dap.runtime.sources import check_memory
from dap.specs.file_names import DENSE, MASKS, MODEL, RAW, RESULT, SPEC, STATE, files_of, folder_of
from dap.specs.methods import METHODS
from dap.specs.run_files import FILES, Damaged, as_read, intact, own, read_json, read_spec, write_json, write_result
from dap.specs.runs import ModelSpec, PruneSpec


def prune_dense(
    spec: PruneSpec,
    folder: str | Path,
    *,
    dense: Path | None = None,
    engine: Engine | None = None,
    on_step: Callable[[News], None] | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Prune the dense model, save masks in `folder`, and evaluate. A run that was stopped goes on.

    `dense` is the folder of the dense training, where the specification does not say it. What it names on a hub is
    fetched with `trust_code` only; what the specification itself names is trusted.
    """
    engine, folder = engine or Engine(), Path(folder)
    spec = settled(spec, folder)
    spec = spec.resolved(suite_pruned(spec, folder, dense))
    done = _finished(folder, spec)
    if done is not None and not is_there(spec, folder, dense):
        return done
    opened = open_dense(spec, folder, dense, trust_code=trust_code or names_its_model(spec))
    model, sources = opened.model, opened.sources
    _refuse_another_model(folder, model)
    check_memory(sources.train, spec.prune.batch_size // engine.ranks.size)
    if done is not None:
        return done
    if engine.device is not None:
        model.to(engine.device)
    log: list[Metrics] = []

    def note(news: News) -> None:
        log[0].add(**{"stage": news.stage, "step": news.step, "steps": news.steps, **news.values})
        if on_step is not None:
            on_step(news)

    data = Calibration(
        sources.train,
        opened.objective,
        batches=spec.batches,
        batch_size=spec.prune.batch_size,
        seed=spec.prune.seed,
        checkpoint=folder / STATE,
        on_step=note,
        engine=engine,
    )
    there, raw = _there(folder), _there(folder / RAW)
    coming = prune(  # refuses what is wrong before the folder is ours
        model,
        data,
        spec.method,
        spec.sparsities,
        allocation=spec.allocation,
        finetuned=spec.finetuned,
        recalibrated=spec.recalibrated,
        raw=spec.raw,
        config=spec.prune,
        train=spec.finetune.over(opened.train),
        validation=sources.held_out,
        watch={target: Joined(list(parts.values()), size=256) for target, parts in sources.targets.items()},
        watch_every=spec.watch_every,
        skip=there.keys() & raw.keys() if spec.raw else there,
    )
    with threads(spec.threads), working_in(folder, spec, engine) as metrics:
        if (done := _finished(folder, spec)) is not None:  # someone else has been faster
            return done
        log.append(metrics)
        if engine.first:
            about: dict[str, Any] = {"identity": fingerprint(model)}
            if isinstance(spec.dense, str):
                about["trained"] = asdict(read_spec(dense or place_of(spec.dense, folder)))
            write_json(folder / DENSE, about)
        for pruned in coming:
            (raw if pruned.raw else there)[pruned.wished] = _keep(folder, pruned, opened, engine)
        result = {
            "spec": asdict(spec),
            "method": spec.method,
            "title": METHODS[spec.method].called(spec.finetuned),
            "dense": _evaluate(model, sources, engine),
            "sparse": dict(sorted(there.items())),
            **({"raw": dict(sorted(raw.items()))} if spec.raw else {}),
        }
        if engine.first and METHODS[spec.method].learns and spec.watch_every is not None:
            result["curve"] = [row for row in read_metrics(folder) if "watched" in row]
        if engine.first:
            for left_over in folder.glob(
                "finetuning-*.safetensors"
            ):  # of a process that was killed before it tidied up
                left_over.unlink()
            write_result(folder, result, *_belonging(folder, result))
    return as_read(result)


def _finished(folder: Path, spec: PruneSpec) -> dict[str, Any] | None:
    """The result, if the run is done and its models are there."""
    done = finished(folder, spec)
    if done is None:
        return None
    with intact(folder / RESULT):
        sparse, raw = done["sparse"].values(), done.get("raw", {}).values()
        whole = all(_has_files(folder, row) for row in sparse) and all(_has_files(folder / RAW, row) for row in raw)
    return done if whole else None


def _there(folder: Path) -> dict[str, dict[str, Any]]:
    """By what was asked for, the sparse models that are there already."""
    there = {}
    for file in folder.glob(f"[0-9]*/{RESULT}"):
        row = read_json(file)
        if "wished" not in row:  # of an evaluation
            continue
        with intact(file):
            if folder_of(folder, row["wished"]) != file.parent:
                raise Damaged(file, f"it is the result of {row['wished']}")
            if _has_files(folder, row):
                for part in files_of(folder, row):
                    own(part.parent, part.name)
                there[row["wished"]] = {name: value for name, value in row.items() if name != FILES}
    return there


def _belonging(folder: Path, result: Mapping[str, Any]) -> list[str]:
    """Files of a pruning that belong to its result; those of a sparse model are listed in its own."""
    names = [SPEC, DENSE, *([STATE] if METHODS[result["method"]].learns else [])]
    for place, rows in {folder: result["sparse"], folder / RAW: result.get("raw", {})}.items():
        names += [(folder_of(place, wished) / RESULT).relative_to(folder).as_posix() for wished in rows]
    return names


def _has_files(folder: Path, row: Mapping[str, Any]) -> bool:
    return all(map(Path.is_file, files_of(folder, row)))


def load_pruned(
    folder: str | Path,
    wished: str | float,
    dense: str | Path | None = None,
    *,
    opened: Opened | None = None,
    trust_code: bool = False,
) -> tuple[nn.Module, Masks, ModelCard]:
    """The sparse model of a finished pruning: a plain module with zeros in place, its masks and its card.

    `wished` is the sparsity that was asked for. `dense` says where the dense training is now, if it was moved; or it is
    `opened` already. A model that is made by code of your own needs `trust_code`, which imports it.
    """
    folder = Path(folder)
    place = folder_of(folder, str(wished))
    file = place / RESULT
    if not file.is_file():
        found = sorted(path.parent.name for path in folder.glob(f"*/{RESULT}"))
        raise DapError(f"no masks for {wished} in {folder}; it has {', '.join(found) or 'none'}")
    for part in (file, folder / DENSE):
        own(folder, part.relative_to(folder).as_posix())
    with intact(file):
        moved = own(place, MODEL) if read_json(file)["weights moved"] else None
    masks = Masks.load(own(place, MASKS))
    spec = read_spec(folder)
    if not isinstance(spec, PruneSpec):
        raise DapError(f"{folder} is no pruning: give the folder of one")
    if moved is not None and not isinstance(spec.dense, ModelSpec):
        if opened is not None:
            _refuse_another_model(folder, opened.model)
        model, card = load_classifier(moved)
        return model, masks, card
    opened = opened or open_dense(spec, folder, Path(dense) if dense else None, trust_code=trust_code)
    _refuse_another_model(folder, opened.model)
    if moved is not None:
        tuned = deepcopy(opened.model)
        load_model(tuned, moved)
        return bake(tuned, masks), masks, opened.card
    return bake(opened.model, masks), masks, opened.card


def _keep(folder: Path, pruned: Pruned, opened: Opened, engine: Engine) -> dict[str, Any]:
    """Write one sparse model down, with its numbers."""
    place = folder_of(folder / RAW if pruned.raw else folder, pruned.wished)
    result = {
        "wished": pruned.wished,
        "sparsity": pruned.masks.sparsity,
        "kept": pruned.masks.kept,
        "total": pruned.masks.total,
        "allocation": pruned.allocation,
        "weights moved": pruned.moved,
        **({} if pruned.flops is None else {"flops": pruned.flops}),
        **_evaluate(pruned.model, opened.sources, engine),
        "layers": pruned.masks.by_layer(),
    }
    if engine.first:
        pruned.masks.save(place / MASKS)
        if pruned.moved:
            save_model(pruned.model, place / MODEL, opened.card)
        write_result(place, result, *(file.name for file in files_of(place.parent, result)))
    return result


def _evaluate(model: nn.Module, sources: Sources, engine: Engine) -> dict[str, Any]:
    held_out = {
        domain: accuracy(model, data, ranks=engine.ranks, domain=domain) for domain, data in sources.held_out.items()
    }
    return {"validation": held_out, **on_targets(model, sources, engine.ranks)}


def _refuse_another_model(folder: Path, model: nn.Module) -> None:
    if (folder / DENSE).exists() and read_json(folder / DENSE, "identity")["identity"] != fingerprint(model):
        raise DapError(f"the dense model is not the one that {folder} prunes: it was replaced; choose another folder")
