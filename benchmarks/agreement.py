"""How much of the sign agreement between domains is signal, and how much the noise of small batches.

    python benchmarks/agreement.py docs/results/pacs/train-…

Two streams of batches that share no draw estimate the domain sensitivity of every weight of a dense model, each as the
mean of n updates. Their correlation over the weights is the share of the variance that is signal. An average with
smoothing β has the noise of the mean of (1 + β) / (1 - β) updates. The last line is one JSON object.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from dap.masks.attach import MaskedModel
from dap.method.gates import GateLayout
from dap.method.gradients import domain_gradients
from dap.method.sensitivities import SignAgreement
from dap.runs.opening import Opened, open_dense
from dap.runtime.outputs import asking
from dap.runtime.sources import batch_stream
from dap.specs import PruneSpec

AT = (1, 5, 12, 24, 48, 99)  # updates


def estimate(opened: Opened, size: int) -> Iterator[tuple[int, float, float, float]]:
    """After so many updates, the correlation of both estimates, and the mean and spread of one of them."""
    masked = MaskedModel(opened.model)
    network = partial(masked, **asking(opened.model, opened.objective.needs))
    layout = GateLayout(masked.weights)
    weights = {name: weight.detach() for name, weight in masked.weights.items()}
    streams = [
        {name: batch_stream(name, data, size, seed) for name, data in opened.sources.train.items()}
        for seed in (1000, 2000)
    ]
    sums = torch.zeros(2, layout.gates)
    for update in range(1, max(AT) + 1):
        for total, stream in zip(sums, streams, strict=True):
            batches = {domain: next(batch) for domain, batch in stream.items()}
            signs = SignAgreement(layout.gates, tuple(batches), torch.device("cpu"), {})
            _, parts = domain_gradients(network, opened.objective, weights, batches)
            for domain, gradients in zip(batches, parts, strict=True):
                for piece, part in layout.gate_gradients(gradients):
                    signs.add(domain, piece, part)
            total += signs.score()
        if update in AT:
            one = sums[0] / update
            yield update, torch.corrcoef(sums)[0, 1].item(), one.mean().item(), one.std().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a dense training")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    opened = open_dense(PruneSpec(args.run), Path(args.run))
    found = {}
    for size in args.batch_size:
        for updates, correlation, mean, spread in estimate(opened, size):
            found[f"{size} images, {updates} updates"] = round(correlation, 4)
            print(
                f"{size} images of each domain, mean of {updates} updates: correlation {correlation:.3f}, "
                f"mean {mean:.4f}, spread {spread:.4f}",
                flush=True,
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
