"""Pixtral's preprocessing: the longer side is bounded, and both are rounded up to whole tokens."""

import math
from dataclasses import dataclass

from protocol.request import ImageDetail
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import CLIP_MEAN, CLIP_STD, PixelValues
from workers.vision.preparation.preparer import ImagePlan, Preparer, Size
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.preparation.smart_resize import check_ratio

LOW_SIDE = 16
"""Tokens of the longer side of an image of low detail, at most."""
BICUBIC = 3
MAX_SIDE = 8192
BREAK, END = "[IMG_BREAK]", "[IMG_END]"
"""The tokens behind each row of an image's tokens, and behind the last one."""


@dataclass(frozen=True, slots=True)
class PixtralPreparer(Preparer):
    """After `PixtralImageProcessor` and `PixtralProcessor` of transformers."""

    longest: int
    """Pixels of a side, at most, before it is rounded up to whole tokens."""

    @classmethod
    def of(cls, settings: PreparationSettings) -> "PixtralPreparer":
        """Read the settings. Raises `CheckpointError`."""
        token = settings.image_token()
        settings.require(BREAK, END)
        patch = math.isqrt(settings.vision.patch_values // 3)
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(settings.preprocessor, CLIP_MEAN, CLIP_STD),
            layout=PatchLayout(patch, math.isqrt(settings.vision.group), True, breaks=1),
            filter=settings.filter(BICUBIC),
            longest=settings.side("size", 1024, MAX_SIDE),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        check_ratio(width, height)
        size = self._size(width, height, detail)
        rows, columns = self.layout.tokens(*size)
        row = self.image_token * columns
        return ImagePlan(BREAK.join([row] * rows) + END, (size,))

    def _size(self, width: int, height: int, detail: ImageDetail) -> Size:
        """Return the sides of an image. After `get_resize_output_image_size` of transformers, but for a side that it
        rounds to 0 pixels, which is a token here."""
        multiple = self.layout.multiple
        longest = min(self.longest, LOW_SIDE * multiple) if detail == "low" else self.longest
        ratio = max(height / longest, width / longest)
        if ratio > 1:
            width, height = (max(1, math.floor(side / ratio)) for side in (width, height))
        return -(-width // multiple) * multiple, -(-height // multiple) * multiple
