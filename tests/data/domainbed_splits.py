"""Writes domainbed_splits.json: DomainBed's split of domains as large as PACS's, `python domainbed_splits.py`.

Straight from the published rule (domainbed/lib/misc.py and domainbed/scripts/train.py) and from none of our code:
shuffle list(range(n)) with RandomState(seed_hash(trial_seed, domain index)), hold out the first int(n · 0.2). Of each
list the file keeps the first ten, the last ten and the SHA-256 of its numbers joined by commas.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")
SIZES = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}


def digest(indices: list[int]) -> dict[str, object]:
    text = ",".join(map(str, indices))
    return {"first": indices[:10], "last": indices[-10:], "sha256": hashlib.sha256(text.encode()).hexdigest()}


def published(trial_seed: int, domain_index: int, size: int) -> dict[str, object]:
    seed = int(hashlib.md5(str((trial_seed, domain_index)).encode("utf-8")).hexdigest(), 16) % 2**31
    keys = list(range(size))
    np.random.RandomState(seed).shuffle(keys)
    held_out = int(size * 0.2)
    return {"train": digest(keys[held_out:]), "held_out": digest(keys[:held_out])}


if __name__ == "__main__":
    splits = {
        str(seed): {domain: published(seed, index, size) for index, (domain, size) in enumerate(SIZES.items())}
        for seed in (0, 1, 2)
    }
    FILE.write_text(json.dumps(splits, indent=1) + "\n")
