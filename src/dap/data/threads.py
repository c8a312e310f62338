"""Reading and decoding in several threads: both leave Python's lock alone for most of the time."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Does `work(0)` … `work(count - 1)` in as many threads as torch uses; an error is raised."""
    places = iter(range(count))

    def several() -> None:
        for place in places:  # each of them comes to one thread only
            work(place)

    threads = torch.get_num_threads()
    if min(threads, count) <= 1:
        several()
    else:
        for done in [_pool(threads, os.getpid()).submit(several) for _ in range(threads)]:
            done.result()


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    # Of this process: threads do not survive a fork.
    return ThreadPoolExecutor(threads, "dap-images")
