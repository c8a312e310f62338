"""How much of the sign agreement between domains is signal, and how much the noise of small batches.

    python benchmarks/agreement.py docs/results/pacs/train-…

Two streams of batches that share no draw estimate the domain sensitivity of every weight of a dense model, each as the
mean of n updates. Their correlation over the weights is the share of the variance that is signal. An average with
smoothing β has the noise of the mean of (1 + β) / (1 - β) updates. The last line is one JSON object.
"""

import argparse
import json
from pathlib import Path

import torch

import dap
from dap.backward import domain_gradients
from dap.masking import maskable_weights
from dap.runs.opening import open_dense
from dap.sensitivity import SignCount
from dap.sources import batch_stream
from dap.specs import PruneSpec

AT = (1, 5, 12, 24, 48)  # updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a dense training")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    opened = open_dense(PruneSpec(args.run), Path(args.run))
    pruner = dap.Pruner(opened.model, objective=opened.objective)  # for its view of the model alone
    weights = {name: weight.detach() for name, weight in maskable_weights(opened.model).items()}
    gates = sum(weight.numel() for weight in weights.values())
    found = {}
    for size in args.batch_size:
        streams = [
            {name: batch_stream(name, data, size, seed) for name, data in opened.sources.train.items()}
            for seed in (1000, 2000)
        ]
        sums = [torch.zeros(gates), torch.zeros(gates)]
        for update in range(1, max(AT) + 1):
            for total, stream in zip(sums, streams, strict=True):
                batches = {domain: next(batch) for domain, batch in stream.items()}
                signs = SignCount(gates, len(batches), torch.device("cpu"))
                _, gradients = domain_gradients(pruner.network, opened.objective, weights, batches)
                for by_name in gradients:
                    flat = torch.cat(
                        [
                            torch.zeros(weights[name].numel()) if g is None else g.flatten()
                            for name, g in by_name.items()
                        ]
                    )
                    signs.add(slice(None), flat)
                total += signs.sensitivity()
            if update in AT:
                both = torch.stack(sums) / update
                correlation = torch.corrcoef(both)[0, 1].item()
                found[f"{size} images, {update} updates"] = round(correlation, 4)
                print(
                    f"{size} images of each domain, mean of {update} updates: correlation {correlation:.3f}, "
                    f"mean {both[0].mean():.4f}, spread {both[0].std():.4f}",
                    flush=True,
                )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
