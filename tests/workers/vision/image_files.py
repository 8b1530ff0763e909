"""Small image files in memory."""

import io
from typing import Any

import numpy as np
from PIL import Image as Pillow

from protocol.request import Image, ImageDetail, ImageFormat


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Pillow.Image:
    """Return an image of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    return Pillow.fromarray(noise, "RGBA").convert(mode) if mode != "RGBA" else Pillow.fromarray(noise, "RGBA")


def as_file(source: Pillow.Image, format: ImageFormat = "png", detail: ImageDetail = "auto", **options: Any) -> Image:
    """Save an image in a format, with Pillow's options of it."""
    data = io.BytesIO()
    source.save(data, format, **options)
    return Image(format, source.width, source.height, data.getvalue(), detail)
