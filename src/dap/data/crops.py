"""Random crops, resized to the full square: torchvision's RandomResizedCrop, with the flip folded in."""

import numpy as np

SCALE = (0.7, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)
TRIES = 10
DRAWS = 2 * TRIES + 2


def sample_boxes(uniform: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Boxes [n, 4] as (top, left, height, width), in whole pixels of the original images.

    `uniform` [n, DRAWS] in [0, 1); `sizes` [n, 2] are the originals' heights and widths. As in torchvision the first of
    ten tries that fits is taken, else the largest central box of an allowed shape.
    """
    heights, widths = sizes[:, :1], sizes[:, 1:]
    area = (SCALE[0] + (SCALE[1] - SCALE[0]) * uniform[:, :TRIES]) * heights * widths
    low, high = np.log(RATIO)
    ratio = np.exp(low + (high - low) * uniform[:, TRIES : 2 * TRIES])
    tried = np.stack([np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))], 2)
    fits = ((tried > 0) & (tried <= sizes[:, None])).all(2)
    first = tried[np.arange(len(tried)), fits.argmax(1)]
    found = fits.any(-1, keepdims=True)
    extent = np.where(found, first, _central(sizes))
    corner = np.where(found, np.floor(uniform[:, 2 * TRIES :] * (sizes - extent + 1)), (sizes - extent) // 2)
    return np.concatenate([corner, extent], 1)


def sample_points(boxes: np.ndarray, sizes: np.ndarray, flips: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows and columns of its image of (side, side) each crop shows: indices and how far it is to the next.

    Both are [n, 2, side], rows first. Images are whole originals squeezed into a square, boxes and `sizes` are in the
    original's pixels. As where an image is cut first and enlarged then, no point lies beyond the centres of the crop's
    outermost pixels.
    """
    start, length = (boxes.reshape(-1, 2, 2) * (side / sizes)[:, None]).transpose(1, 0, 2)[..., None]
    inside = (np.arange(side) + 0.5) * (length / side) - 0.5
    points = start + np.clip(inside, 0, np.maximum(length - 1, 0))
    points[flips, 1] = points[flips, 1, ::-1]
    indices = points.astype(np.intp)
    return indices, (points - indices).astype(np.float32)


def crop(image: np.ndarray, indices: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Bytes [3, s, s] at the points of one crop, bilinear, float32 [3, column, row].

    A crop is never larger than the image, so this only ever enlarges. The result is transposed: rows are contiguous and
    quick to fetch, so columns are fetched as rows, and turning it back is left to whoever copies it.
    """
    rows = _interpolate_rows(image.astype(np.float32), indices[0], between[0])
    return _interpolate_rows(np.ascontiguousarray(rows.transpose(0, 2, 1)), indices[1], between[1])


def _central(sizes: np.ndarray) -> np.ndarray:
    heights, widths = sizes[:, 0], sizes[:, 1]
    low, high = RATIO
    return np.stack([np.minimum(heights, np.rint(widths / low)), np.minimum(widths, np.rint(heights * high))], 1)


def _interpolate_rows(image: np.ndarray, indices: np.ndarray, between: np.ndarray) -> np.ndarray:
    rows = np.take(image, indices, axis=1)
    step = np.take(image, indices + 1, axis=1, mode="clip")  # past the last row its weight is 0
    step -= rows
    step *= between[:, None]
    rows += step
    return rows
