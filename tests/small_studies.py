"""Studies that take seconds."""

import hashlib
from pathlib import Path

import safetensors.numpy

from dap.studies import Study, read_study

TWELVE = """
name: tiny
train:
  suite: digits
  target: [outline, plain]
  seed: [0, 1]
  backbone: small_resnet
  weights: null
  train: {steps: 6, batch_size: 4, freeze_norms: false, learning_rate: 0.001, check_every: 3}
prune:
  - method: magnitude
    sparsities: [0.5]
    prune: {batch_size: 4}
  - method: dap
    sparsities: [0.5]
    prune: {steps: 8, batch_size: 4, target_sparsity: 0.6}
"""


# With everything that a report shows.
REPORTED = """
name: tiny
train:
  suite: {images}
  target: a
  seed: [0, 1]
  pixels: 32
  backbone: small_resnet
  weights: null
  train: {{steps: 4, batch_size: 4, freeze_norms: false, learning_rate: 0.001, check_every: 2}}
prune:
  - {{method: magnitude, sparsities: [0.3, 0.5], prune: {{batch_size: 4}}}}
  - {{method: control, finetune: {{steps: 2}}, prune: {{batch_size: 4}}}}
  - method: [dap, agnostic]
    sparsities: [0.3, 0.5]
    watch_every: 2
    prune: {{steps: 8, batch_size: 4, target_sparsity: 0.6}}
evaluate: {{attacks: [fgsm], images: 2, interpret: true}}
"""

SIX = TWELVE.replace("seed: [0, 1]", "seed: 0")
THREE = SIX.replace("target: [outline, plain]", "target: plain")


def make_study(folder: Path, text: str = SIX) -> Study:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(text)
    return read_study(folder / "study.yaml", folder / "runs")


def contents(study: Study) -> dict[str, str]:
    """What the runs came to: every file that does not tell of times and machines, by a hash."""
    files = {}
    for pattern in ("*/result.json", "*/*/result.json", "*/*/masks.safetensors", "*/model.safetensors"):
        for path in sorted(study.folder.glob(pattern)):
            files[str(path.relative_to(study.folder))] = hashed(path)
    return files


def hashed(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".safetensors":  # the order of its metadata is that of a hash table
        data = safetensors.numpy.save(safetensors.numpy.load(data))
    return hashlib.sha256(data).hexdigest()


def leftovers(study: Study) -> list[str]:
    """Files that a killed process was writing."""
    return [str(path) for path in study.folder.rglob(".*") if path.name != ".lock"]
