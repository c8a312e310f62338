"""Studies that take seconds."""

import atexit
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dap.data import DOMAINS
from dap.studies import Study, read_study
from data.small_suites import make_folder

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


@cache
def small_suite() -> Path:
    """Domains called as those of the digits, at one place for all studies, whose ids depend on it."""
    folder = Path(tempfile.mkdtemp(prefix="dap-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_folder(folder / "images", {domain: {"x": 10, "y": 10} for domain in DOMAINS})


def make_study(folder: Path, text: str = SIX) -> Study:
    """The digits are replaced by a suite that is soon evaluated."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(text.replace("suite: digits", f"suite: {small_suite()}\n  pixels: 16"))
    return read_study(folder / "study.yaml", folder / "runs")


def contents(study: Study) -> dict[str, str]:
    """What the runs came to: every file that does not tell of times and machines, by a hash."""
    files = {}
    for pattern in ("*/result.json", "*/*/result.json", "*/*/masks.safetensors", "*/model.safetensors"):
        for path in sorted(study.folder.glob(pattern)):
            files[str(path.relative_to(study.folder))] = hashed(path)
    return files


def write_as_before(file: Path, values: Mapping[str, Any] | None = None) -> None:
    """As earlier versions wrote it, and specification and log beside it: without digests; of `values`, if given."""
    values = json.loads(file.read_text()) if values is None else values
    values = {name: value for name, value in values.items() if name not in ("sha256 of the rest", "files")}
    file.write_text(json.dumps(values))
    if file.name == "spec.json" and (log := file.with_name("metrics.jsonl")).is_file():
        log.write_text(re.sub(r', "crc32 of the rest": "\w+"', "", log.read_text()))
    elif file.name != "spec.json" and (spec := file.with_name("spec.json")).is_file():
        write_as_before(spec)


def hashed(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def leftovers(study: Study) -> list[str]:
    """Files that a killed process was writing."""
    return [str(path) for path in study.folder.rglob(".*") if path.name != ".lock"]
