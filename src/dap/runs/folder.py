"""A run's folder: whose it is."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dap.checkpoints import difference
from dap.engine import Engine
from dap.errors import DapError
from dap.files import write_atomic

SPEC, RESULT = "spec.json", "result.json"


def claim(folder: Path, spec: Any, engine: Engine) -> None:
    """Write down whose folder this is, or refuse it if it is another run's."""
    file, ours = folder / SPEC, json.loads(json.dumps(asdict(spec)))
    if file.exists():
        theirs = json.loads(file.read_text())
        if known := difference(theirs, ours):
            raise DapError(f"{folder} holds a run with {known}: choose another folder, or remove it")
    elif engine.first:
        write_atomic(file, json.dumps(ours, indent=1).encode())
    engine.ranks.wait()
