"""Builds a cache in a process of its own, slowly: `python build_cache.py <images> <count> <cache> <pause> <log>`.

Each image opened is a line in the log.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dap.data import cache
from dap.data.listing import Listing, list_files


def logged(listing: Listing, pause: float, log: Path) -> Listing:
    def opened(row: int) -> Any:
        with open(log, "a") as lines:
            lines.write(f"{row}\n")
        time.sleep(pause)
        return listing.open(row)

    return dataclasses.replace(listing, open=opened)


if __name__ == "__main__":
    folder, count, where, pause, log = sys.argv[1:]
    torch.set_num_threads(1)
    cache.BLOCK_BYTES = 5 * 3 * 16 * 16  # five images
    names = [f"{number:03}.png" for number in range(int(count))]
    listing = list_files(Path(folder), names, np.arange(int(count)) % 3)
    cache.cached(logged(listing, float(pause), Path(log)), 16, Path(where), "test")
