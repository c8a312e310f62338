"""DomainBed's train and eval transforms on a batch of bytes, each image changed by its own seed and nothing else."""

import numpy as np

from dap.data import crops
from dap.data.colours import WHITE, brightness, contrast, greyscale, hue, saturation
from dap.data.draws import uniforms
from dap.data.threads import in_threads

MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
SCALE, OFFSET = 1 / (WHITE * STD), MEAN / STD

JITTER = (brightness, contrast, saturation, hue)
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
    uniform = uniforms(seeds, crops.DRAWS + 10)
    boxes = crops.sample_boxes(uniform[:, : crops.DRAWS], sizes)
    flip, grey, jitter = np.split(uniform[:, crops.DRAWS :], [1, 2], axis=1)
    indices, between = crops.sample_points(boxes, sizes, flip[:, 0] < FLIP, images.shape[-1])
    orders, factors = sample_jitter(jitter)

    def one(place: int) -> None:
        view = crops.crop(images[place], indices[place], between[place])
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


def sample_jitter(uniform: np.ndarray) -> tuple[list[list[int]], list[list[float]]]:
    """Numbers [n, 8] in [0, 1) to the order of the four changes and to their factors, four of each per image."""
    factors = 1 + STRENGTH * (2 * uniform[:, 4:] - 1)
    factors[:, JITTER.index(hue)] -= 1  # a shift, around 0
    return uniform[:, :4].argsort(1).tolist(), factors.tolist()
