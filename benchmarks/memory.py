"""Memory of a training does not grow with the number of images, but for their index (paths, labels, sizes, the split).

    python benchmarks/memory.py

Builds the caches of two suites of 32-pixel images, 20,000 and 200,000, through dap's own builder from images that are
made in memory, and trains a small network on each in a process of its own. The last line is one JSON object.
"""

import argparse
import gc
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import dap
from dap.data import Images, Suite, split_suite
from dap.data.cache import cached
from dap.data.listing import Listing, Names
from dap.models import small_resnet

SIZES = (20_000, 200_000)
PIXELS, CLASSES, BATCH = 32, 10, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--train", nargs=2, metavar=("IMAGES", "CACHE"), help="one training, as this script starts it")
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(int(options.train[0]), Path(options.train[1]), options.steps)))
        return
    print(f"{'images':>8} {'peak MB':>9} {'anonymous MB':>13} {'index MB':>9}")
    with tempfile.TemporaryDirectory() as cache:
        few, many = (measure(images, cache, options.steps) for images in SIZES)
    more = SIZES[1] - SIZES[0]
    result: dict[str, float] = {
        "growth_bytes_per_image": round((many["peak"] - few["peak"]) / more, 1),
        "index_bytes_per_image": round((many["index"] - few["index"]) / more, 1),
        "pixel_bytes_per_image": 3 * PIXELS**2,
    }
    result |= {f"peak_bytes_{SIZES[0]}": few["peak"], f"peak_bytes_{SIZES[1]}": many["peak"]}
    print(json.dumps(result))


def measure(images: int, cache: str, steps: int) -> dict[str, int]:
    cached(listing(images), PIXELS, Path(cache), f"{images} images")
    arguments = ["--train", str(images), cache, "--steps", str(steps)]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    run: dict[str, int] = json.loads(done.stdout)
    print(f"{images:>8} {run['peak'] / 1e6:>9.1f} {run['anonymous'] / 1e6:>13.1f} {run['index'] / 1e6:>9.1f}")
    return run


def train(count: int, cache: Path, steps: int) -> dict[str, int]:
    torch.manual_seed(0)
    index = listing(count)
    store = cached(index, PIXELS, cache, "images")
    images = Images(index, store, np.arange(count, dtype=np.int32))
    suite = Suite("synthetic", tuple(map(str, range(CLASSES))), {"domain": images}, PIXELS)
    source, held_out = split_suite(suite, seed=0)["domain"]
    assert isinstance(source, Images)
    assert isinstance(held_out, Images)
    config = dap.TrainConfig(steps=steps, batch_size=BATCH, freeze_norms=False)
    dap.train(small_resnet(CLASSES), {"domain": source.augmented()}, config)
    arrays = (index.labels, store.sizes, images.listed, source.listed, held_out.listed)
    gc.collect()
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak, anonymous = (int(status[name].split()[0]) * 1024 for name in ("VmHWM", "RssAnon"))
    return {"peak": peak, "anonymous": anonymous, "index": index.names.nbytes + sum(a.nbytes for a in arrays)}


def listing(images: int) -> Listing:
    names = Names(f"domain/class_{row % CLASSES}/domain_{row % CLASSES:03}_{row:06}.jpg" for row in range(images))
    return Listing(names, (np.arange(images) % CLASSES).astype(np.int32), None, f"synthetic {images}", picture)


def picture(row: int) -> io.BytesIO:
    """A plain colour, in PPM: quick to make and to decode."""
    colour = bytes((row % 256, row // 256 % 256, row % CLASSES * 25))
    return io.BytesIO(b"P6 %d %d 255\n" % (PIXELS, PIXELS) + colour * PIXELS**2)


if __name__ == "__main__":
    main()
