"""Images for the scripted runner: an image processor and a vision tower without a device, deterministic and fast.

Nothing is decoded: what is computed follows from the bytes of the file, and the number of tokens from its stated sides.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.request import Image
from workers.engine.runner import NotFiniteError
from workers.vision.config import Merger, VisionConfig
from workers.vision.image_refused import ImageRefused
from workers.vision.outline import ImageOutline, row_offsets
from workers.vision.patches import ImagePatches

PLACEHOLDER = "<|image|>"
"""The text for an image in a prompt, and for each of its rows."""
IMAGE_TOKEN = 255
"""The byte that is in no UTF-8 text."""
WIDTH = 8
"""Numbers of a row."""
GROUP = 4
PATCH_VALUES = 4
PIXELS_PER_TOKEN = 32
"""Pixels of a side of the square that gives a token."""
MAX_SIDE = 8
"""Tokens of a side, at most."""
PARTS = 4
"""Parts of the computation of one image."""
MAX_PATCHES = GROUP * MAX_SIDE * MAX_SIDE
_MAGIC = {"png": b"\x89PNG", "jpeg": b"\xff\xd8", "gif": b"GIF8", "webp": b"RIFF"}
_CHECKPOINT = b"scripted-1"


@dataclass(frozen=True, slots=True)
class ScriptedPrepared:
    """An image as the prompt builder gets it."""

    text: str
    parts: tuple[ImagePatches, ...]


class ScriptedImageProcessor:
    """Prepares images for `ScriptedVision`. `mrope`: the positions of its tokens have a row and a column."""

    placeholder = PLACEHOLDER
    image_token = IMAGE_TOKEN
    max_patches: int | None = MAX_PATCHES

    def __init__(self, *, mrope: bool = True) -> None:
        self.config = _config(mrope=mrope)

    def among(self, images: tuple[Image, ...], places: int) -> tuple[Image, ...]:
        """Return the images."""
        return images

    def outline(self, image: Image) -> ImageOutline:
        """Return the text and the rows that an image becomes, by its stated sides. Raises `ImageRefused`, for a file
        that does not begin as its format does."""
        if not image.data.startswith(_MAGIC[image.format]):
            raise ImageRefused(f"the file is no {image.format} image: send it again, or as another format")
        rows, columns = _sides(image)
        return ImageOutline(PLACEHOLDER * (rows * columns), (row_offsets(rows, columns),))

    def prepare(self, image: Image) -> ScriptedPrepared:
        """Return the patches of an image. Raises `ImageRefused`, for a file that does not
        begin as its format does."""
        outline = self.outline(image)
        rows, columns = _sides(image)
        patches = GROUP * rows * columns
        # Two files of equal bytes and other stated sides are two images.
        key = hashlib.blake2b(f"{image.width}x{image.height}:".encode() + image.data, key=_CHECKPOINT).digest()[:16]
        noise = np.frombuffer(hashlib.shake_128(key).digest(patches * PATCH_VALUES), np.uint8)
        values = noise.astype(np.float32).reshape(patches, PATCH_VALUES) / np.float32(255)
        grid = (2 * rows, 2 * columns)
        places = np.stack(np.divmod(np.arange(patches, dtype=np.int32), np.int32(2 * columns)), axis=1)
        part = ImagePatches(values, grid, places.astype(np.int32), key, tokens=(rows, columns))
        return ScriptedPrepared(outline.text, (part,))


class ScriptedVision:
    """Implements `workers.vision.encoder.VisionEncoder`. `part_seconds` is the time of a part, by `sleep`."""

    width = WIDTH
    max_patches = MAX_PATCHES

    def __init__(self, *, parts: int = PARTS, part_seconds: float = 0.0, sleep: Callable[[float], None]) -> None:
        self._parts = parts
        self._part_seconds = part_seconds
        self._sleep = sleep
        self.begun = 0
        """Images that were begun."""
        self.open = 0
        """Those that are not closed yet."""
        self.advanced = 0
        """Parts that were computed."""

    def begin(self, image: ImagePatches) -> "ScriptedEncoding":
        """See `VisionEncoder.begin`."""
        if len(image.values) > self.max_patches:
            raise ValueError(f"image: {len(image.values)} patches, {self.max_patches} are at most")
        self.begun += 1
        self.open += 1
        return ScriptedEncoding(self, image, self._parts)

    def memory(self) -> dict[str, int]:
        """Report 0 bytes."""
        return {"vision_weights": 0, "vision_buffers": 0}

    def part(self) -> None:
        """Take the time of a part."""
        self.advanced += 1
        if self._part_seconds:
            self._sleep(self._part_seconds)


class ScriptedEncoding:
    """Implements `workers.vision.encoder.ImageEncoding`."""

    def __init__(self, tower: ScriptedVision, image: ImagePatches, parts: int) -> None:
        self._tower = tower
        self._image = image
        self.parts = parts
        self._done = 0
        self._closed = False

    def advance(self) -> bool:
        """See `ImageEncoding.advance`."""
        if self._closed or self._done == self.parts:
            raise RuntimeError("the encoding is complete or closed")
        self._tower.part()
        self._done += 1
        return self._done == self.parts

    def rows(self) -> NDArray[np.float32]:
        """See `ImageEncoding.rows`. A row has the sums of its patches, and their squares."""
        if self._closed or self._done < self.parts:
            raise RuntimeError("the encoding is not complete, or closed")
        groups = self._image.values.reshape(self._image.count, -1, PATCH_VALUES)
        rows = np.concatenate([groups.sum(axis=1), (groups * groups).sum(axis=1)], axis=1)
        if not np.isfinite(rows).all():
            raise NotFiniteError
        return rows

    def close(self) -> None:
        """See `ImageEncoding.close`."""
        self._tower.open -= not self._closed
        self._closed = True


def _sides(image: Image) -> tuple[int, int]:
    """Return the rows and columns of tokens of an image."""
    rows, columns = (min(MAX_SIDE, math.ceil(pixels / PIXELS_PER_TOKEN)) for pixels in (image.height, image.width))
    return (1, 1) if image.detail == "low" else (rows, columns)


def _config(*, mrope: bool) -> VisionConfig:
    merger = Merger("concat", None, False, 0.0, 0, None, False)
    return VisionConfig(
        family="scripted",
        patch_values=PATCH_VALUES,
        layers=1,
        hidden=WIDTH,
        heads=1,
        head_dim=WIDTH,
        mlp=WIDTH,
        norm="layer",
        eps=1e-6,
        activation="gelu",
        gated=False,
        biases=False,
        scale=1.0,
        group=GROUP,
        merger=merger,
        output=WIDTH,
        mrope=(1, 1, 1) if mrope else (),
    )
