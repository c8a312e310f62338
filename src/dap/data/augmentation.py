"""DomainBed's train and eval transforms on a batch of bytes, each image changed by its own seed and nothing else."""

import numpy as np

from dap.data.threads import in_threads

# Images stay on the scale of their bytes until they are normalised: one pass over them less.
WHITE = 255.0
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
SCALE, OFFSET = 1 / (WHITE * STD), MEAN / STD

STRENGTH = 0.3  # of each of the four
FLIP, GREYSCALE = 0.5, 0.1  # probabilities
THREADED = 192  # the side from which several threads are faster than one: at 224 by a fifth, at 112 slower by a third


def normalise(images: np.ndarray, out: np.ndarray) -> None:
    """Bytes, or floats on their scale, [..., 3, s, s] to ImageNet's mean and standard deviation in `out`."""
    np.multiply(images, SCALE, out=out)
    out -= OFFSET


def augment(images: np.ndarray, sizes: np.ndarray, seeds: np.ndarray, out: np.ndarray) -> None:
    """The train transform: bytes [n, 3, s, s] of originals of `sizes` [n, 2] to normalised floats in `out`.

    What happens is drawn for all images at once, and done image by image: each stays in the processor's cache through
    some forty passes over it. Small ones in one thread: their passes are too short to hand over Python's lock.
    """
    uniform = uniforms(seeds, DRAWS + 10)
    boxes = sample_boxes(uniform[:, :DRAWS], sizes)
    flip, grey, jitter = np.split(uniform[:, DRAWS:], [1, 2], axis=1)
    indices, between = sample_points(boxes, sizes, flip[:, 0] < FLIP, images.shape[-1])
    orders, factors = sample_jitter(jitter)

    def one(place: int) -> None:
        view = crop(images[place], indices[place], between[place])
        for which in orders[place]:
            JITTER[which](view, factors[place][which])
        if grey[place, 0] < GREYSCALE:
            greyscale(view)
        normalise(view.transpose(0, 2, 1), out[place])

    if images.shape[-1] >= THREADED:
        in_threads(one, len(images))
    else:
        for place in range(len(images)):
            one(place)


# ---- random numbers that belong to an image: a function of its seed and of their place, so that a batch divided over
# several processes is augmented as it would be in one

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): the constants of SplitMix64.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seeds: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1): seeds [n], uint64, to float64 [n, count].

    >>> uniforms(np.array([1, 2], np.uint64), 3).shape
    (2, 3)
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
    # Mixed once before the steps too: seeds that are a step apart would share their numbers.
    bits = _mix(_mix(seeds.astype(np.uint64))[:, None] + steps)
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))


# ---- random crops, resized to the full square: torchvision's RandomResizedCrop, with the flip folded in

AREA = (0.7, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)
TRIES = 10
DRAWS = 2 * TRIES + 2


def sample_boxes(uniform: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Boxes [n, 4] as (top, left, height, width), in whole pixels of the original images.

    `uniform` [n, DRAWS] in [0, 1); `sizes` [n, 2] are the originals' heights and widths. As in torchvision the first of
    ten tries that fits is taken, else the largest central box of an allowed shape.
    """
    heights, widths = sizes[:, :1], sizes[:, 1:]
    area = (AREA[0] + (AREA[1] - AREA[0]) * uniform[:, :TRIES]) * heights * widths
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


# ---- changes of colour, in place, on float images [3, h, w] between 0 and WHITE: torchvision's, without its rounding

LUMINANCE = (0.2989, 0.587, 0.114)

SIGN = np.int32(-(2**31))  # the bit
PLACES = np.array([3, 2, 4], np.float32)[:, None, None]


def brightness(image: np.ndarray, factor: float) -> None:
    image *= factor
    _clip(image, factor)


def contrast(image: np.ndarray, factor: float) -> None:
    mean = float(np.dot(LUMINANCE, image.mean((1, 2))))
    image *= factor
    image += (1 - factor) * mean
    _clip(image, factor)


def saturation(image: np.ndarray, factor: float) -> None:
    grey = _luminance(image)
    grey *= 1 - factor
    image *= factor
    image += grey
    _clip(image, factor)


def hue(image: np.ndarray, shift: float) -> None:
    """Turns the colour circle by `shift`, a share of it between −0.5 and 0.5.

    Angles are in sixths of the circle and multiplied by the chroma, so that greys need no exception and nothing is
    divided. There are no branches either, which would be the dearest part: signs are moved as bits.
    """
    red, green, blue = image
    highest, lowest = np.maximum(red, green), np.minimum(red, green)
    np.maximum(highest, blue, out=highest)
    np.minimum(lowest, blue, out=lowest)
    chroma = highest - lowest
    # The distance from red: with chroma 1 and the lowest channel 0 it is 1 + green + blue − red in all six sectors.
    angle = green + blue
    angle -= red
    angle += chroma
    angle -= lowest
    # Towards green it is positive, towards blue negative.
    angle.view(np.int32)[:] |= (green - blue).view(np.int32) & SIGN
    angle += (6 * shift) * chroma
    # Then from 0 to 6: one turn more where it is negative.
    angle += ((angle.view(np.int32) >> 31) & (6 * chroma).view(np.int32)).view(np.float32)
    # Green is full up to 1 from its place at 2 and gone from 2 on; blue likewise at 4; red is the reverse at 3.
    away = chroma * PLACES
    away -= angle
    np.abs(away, out=away)
    np.maximum(away, chroma, out=away)
    np.minimum(away, 2 * chroma, out=away)
    np.add(away[0], lowest - chroma, out=red)
    np.subtract(highest + chroma, away[1:], out=image[1:])


def greyscale(image: np.ndarray) -> None:
    image[:] = _luminance(image)


def _luminance(image: np.ndarray) -> np.ndarray:
    grey = image[0] * LUMINANCE[0]
    grey += image[1] * LUMINANCE[1]
    grey += image[2] * LUMINANCE[2]
    return grey


def _clip(image: np.ndarray, factor: float) -> None:
    if factor > 1:  # else the result lies between the image and black, or its mean, or its grey
        np.clip(image, 0, WHITE, out=image)


JITTER = (brightness, contrast, saturation, hue)


def sample_jitter(uniform: np.ndarray) -> tuple[list[list[int]], list[list[float]]]:
    """Numbers [n, 8] in [0, 1) to the order of the four changes and to their factors, four of each per image."""
    factors = 1 + STRENGTH * (2 * uniform[:, 4:] - 1)
    factors[:, JITTER.index(hue)] -= 1  # a shift, around 0
    return uniform[:, :4].argsort(1).tolist(), factors.tolist()
