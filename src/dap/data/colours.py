"""Changes of colour, in place, on float images [3, h, w] between 0 and WHITE: torchvision's, without its rounding."""

import numpy as np

# Images stay on the scale of their bytes until they are normalised: one pass over them less.
WHITE = 255.0
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
