"""dap predict: what an exported model sees in images."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from dap.models import ModelCard

_BATCH = 32


def predict_images(
    model: str, images: list[str], threads: int | None = None, json: bool = False, allow_unverified: bool = False
) -> int:
    """Classify image files with an ONNX model that dap exported.

    Example: dap predict model.onnx photos/cat.jpg photos/more

    Args:
        model: the .onnx file, which says how images are prepared and what the classes are called
        images: files, and folders whose files are taken
        threads: of ONNX Runtime (default: as many as there are cores)
        json: print one JSON object a line
        allow_unverified: also accept a file without a checksum, which may have been changed since it was exported

    Returns:
        0, or 1 if an image cannot be read
    """
    import sys
    from json import dumps

    from dap.config import check_counts
    from dap.runtime.files import check_there

    check_there(model, "an .onnx file that dap export wrote")
    check_counts(threads=threads)
    files = _files(images)
    import numpy as np

    from dap.errors import DapError
    from dap.export.onnx import open_onnx

    session = open_onnx(model, threads)
    if not (session.verified or allow_unverified):
        raise DapError(f"{model} has no checksum: export it again, or accept it as it is with --allow-unverified")
    card, unreadable = session.card, 0
    for batch in (files[start : start + _BATCH] for start in range(0, len(files), _BATCH)):
        readable = {}
        for file in batch:
            try:
                readable[file] = _prepared(file, card, session.channels)
            except Exception as error:  # decoders of damaged files raise anything at all
                unreadable += 1
                print(f"dap: cannot read {file} ({error}): mend or remove it", file=sys.stderr)
        if not readable:
            continue
        logits = session.run(np.stack(list(readable.values())))
        chances = np.exp(logits - logits.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        for file, row in zip(readable, chances.tolist(), strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            if json:
                scores = dict(zip(card.class_names, row, strict=True))
                print(dumps({"image": str(file), "class": card.class_names[best], "probabilities": scores}))
            else:
                print(f"{file}: {card.class_names[best]} ({row[best]:.1%})")
    return int(unreadable > 0)


def _files(names: list[str]) -> list[Path]:
    from dap.errors import DapError

    found: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        elif path.is_file():
            found.append(path)
        elif path.exists():
            raise DapError(f"{path} is not a regular file: give image files, or folders of them")
        else:
            raise DapError(f"there is no {path}: give image files, or folders of them")
    if not found:
        raise DapError(f"there are no files in {', '.join(names)}: give images")
    return found


def _prepared(file: Path, card: "ModelCard", channels: int) -> "np.ndarray":
    """As the model's images were in evaluation, [c, h, w]."""
    import numpy as np

    from dap.data.decoding import decode

    mean, std = (np.array(values, np.float32).reshape(-1, 1, 1) for values in (card.mean, card.std))
    return (decode(file, card.pixels)[0][:channels] / np.float32(255) - mean) / std  # a grey image's channels are equal
