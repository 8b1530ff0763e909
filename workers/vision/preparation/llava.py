"""LLaVA's preprocessing: the shorter side gets the size of the tower, and the longer one is cropped."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image as Pillow

from protocol.request import ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import CLIP_MEAN, CLIP_STD, PixelValues
from workers.vision.preparation.preparer import ImagePlan, Preparer, Size
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.preparation.smart_resize import check_ratio

BICUBIC = 3
MAX_RATIO = 20
"""The longest side of an image, in shortest ones. What is resized has up to so many times the pixels of the tower, or
of the image where it is made square; little of longer images would be seen."""
STRIP = 256
"""Rows that are resized at a time where a picture is made square."""


@dataclass(frozen=True, slots=True)
class LlavaPreparer(Preparer):
    """After `LlavaImageProcessor` and `CLIPImageProcessor` of transformers."""

    side: int
    """Pixels of a side of the tower's images."""
    background: tuple[int, int, int] | None
    """The colour of what is added to make an image square; None where it is cropped."""

    @classmethod
    def of(cls, settings: PreparationSettings) -> "LlavaPreparer":
        """Read the settings. Raises `CheckpointError`."""
        fields, table = settings.preprocessor, settings.vision.table
        assert table is not None  # every tower of the family has one
        patch = math.isqrt(settings.vision.patch_values // 3)
        side = settings.side("crop_size", 224, 8192)
        if side != table[0] * patch:
            raise fields.error("crop_size", f"is not {table[0] * patch} pixels, those of the tower in config.json")
        if _shortest(fields, settings) != side:
            raise fields.error("size", f"is not that of crop_size, {side} pixels, which is not supported")
        if not fields.flag("do_center_crop", True):
            raise fields.error("do_center_crop", "false is not supported for images")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(fields, CLIP_MEAN, CLIP_STD),
            layout=PatchLayout(patch, 1, True),
            filter=settings.filter(BICUBIC),
            side=side,
            background=_background(fields) if fields.flag("do_pad", False) else None,
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        check_ratio(width, height, MAX_RATIO)
        size = (self.side, self.side)
        return ImagePlan(self.run(size), (size,))

    def tiles(self, picture: Pillow.Image, plan: ImagePlan) -> Iterator[Pillow.Image]:
        if self.background is not None:
            yield self._padded(picture, self.background)
            return
        picture = self.resized(picture, self._whole(*picture.size))
        left, top = ((each - self.side) // 2 for each in picture.size)
        yield picture.crop((left, top, left + self.side, top + self.side))

    def _padded(self, picture: Pillow.Image, background: tuple[int, int, int]) -> Pillow.Image:
        """Return a picture that is made square and resized. The square is never held, which may take 800 MB for a file
        of a few kB: Pillow resizes rows first, each for itself, and then columns, to which this adds nothing."""
        longer = max(picture.size)
        left, top = (longer - picture.width) // 2, (longer - picture.height) // 2
        narrow = Pillow.new("RGB", (self.side, longer), background)
        for at in range(0, picture.height, STRIP):
            rows = min(STRIP, picture.height - at)
            strip = Pillow.new("RGB", (longer, rows), background)
            strip.paste(picture.crop((0, at, picture.width, at + rows)), (left, 0))
            narrow.paste(self.resized(strip, (self.side, rows)), (0, top + at))
        return self.resized(narrow, (self.side, self.side))

    def _whole(self, width: int, height: int) -> Size:
        """Return the sides with the shorter one as configured."""
        if width <= height:
            return self.side, int(self.side * height / width)
        return int(self.side * width / height), self.side


def _shortest(fields: Fields, settings: PreparationSettings) -> int:
    size = fields.section("size") if isinstance(fields.get("size"), dict) else None
    if size is None or size.get("shortest_edge") is None:
        return settings.side("size", 224, 8192)
    return size.integer("shortest_edge", most=8192)


def _background(fields: Fields) -> tuple[int, int, int]:
    red, green, blue = (int(float(each) * 255) for each in fields.get("image_mean") or CLIP_MEAN)
    return red, green, blue
