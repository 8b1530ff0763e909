"""The sizes of images whose number of pixels is bounded: Qwen's rule, which LFM2-VL has as well."""

import math

from workers.vision.image_refused import ImageRefused
from workers.vision.preparation.preparer import Size

MAX_RATIO = 200
"""The longest side of an image, in shortest ones."""


def smart_resize(width: int, height: int, multiple: int, least: float, most: float, *, floor: int = 0) -> Size:
    """Return the sides of an image as multiples of a number of pixels, with about the same ratio, and between `least`
    and `most` pixels in all. Sides are at least `floor`.

    After `smart_resize` of transformers' image processors of Qwen2-VL (`floor` 0) and LFM2-VL.
    """
    wide, high = (max(floor, round(side / multiple) * multiple) for side in (width, height))
    if wide * high > most:
        beta = math.sqrt(height * width / most)
        wide, high = (max(multiple, math.floor(side / beta / multiple) * multiple) for side in (width, height))
    elif wide * high < least:
        beta = math.sqrt(least / (height * width))
        wide, high = (math.ceil(side * beta / multiple) * multiple for side in (width, height))
    return wide, high


def check_ratio(width: int, height: int, most: int = MAX_RATIO) -> None:
    """Raise `ImageRefused` for an image that is much longer than it is wide."""
    if max(width, height) > most * min(width, height):
        raise ImageRefused(f"{width} x {height} pixels: one side is more than {most} times the other: crop the image")
