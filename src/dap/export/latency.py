"""How long a forward pass takes: candidates in turn, in one run, so that their ratio is honest on a noisy machine."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.export.onnx import open_onnx
from dap.masks.attach import frozen
from dap.runtime.engine import threads as torch_threads


def latency(run: Callable[[], object], repeats: int = 30) -> float:
    """The median time of a call, in seconds.

    >>> latency(lambda: time.sleep(0.01), repeats=3) >= 0.01
    True
    """
    return in_turn({"it": run}, repeats)["it"]


def in_turn(runs: Mapping[str, Callable[[], object]], repeats: int = 30) -> dict[str, float]:
    """The median times of calls, in seconds, by name: whatever slows the machine down for a while slows all of them.

    Each turn begins with two calls that are not timed: they bring weights back into the cache, and the threads of the
    one before have gone to sleep by their end.
    """
    if repeats < 1:
        raise DapError(f"repeats is {repeats}; a median needs at least one")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            run()
            run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def compare(
    models: Mapping[str, nn.Module | str | Path],
    shape: tuple[int, ...] = (3, 224, 224),
    *,
    batch: int = 1,
    threads: int | None = None,
    repeats: int = 30,
) -> dict[str, float]:
    """Median seconds on the CPU of a batch of images of `shape`, by name: of modules, and of ONNX files.

    All have the same number of threads, by default PyTorch's. Modules are run in eval mode.

    >>> times = compare({"small": nn.Conv2d(3, 4, 3), "large": nn.Conv2d(3, 400, 3)}, (3, 64, 64), threads=1)
    >>> times["small"] < times["large"]
    True
    """
    images = torch.randn(batch, *shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    count = threads or torch.get_num_threads()
    runs: dict[str, Callable[[], object]] = {}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch_threads(count))
        for name, model in models.items():
            if isinstance(model, nn.Module):
                stack.enter_context(frozen(model))
                runs[name] = partial(model, _fitting(images, name, model))
            else:
                runs[name] = partial(open_onnx(model, count).run, images.numpy())
        return in_turn(runs, repeats)


def _fitting(images: Tensor, name: str, model: nn.Module) -> Tensor:
    """In the model's precision."""
    first = next(model.parameters(), images)
    if first.device.type != "cpu":  # whose calls return before they are done
        raise DapError(f"{name} is on {first.device}: latencies are measured on the CPU, give model.cpu()")
    return images.to(first.dtype)
