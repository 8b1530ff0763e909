"""Gemma 3's preprocessing: every image has the same sides; with pan and scan, long images have crops as well."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image as Pillow

from protocol.request import ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import HALF, PixelValues
from workers.vision.preparation.preparer import Plan, Preparer, Size
from workers.vision.preparation.settings import Settings

BILINEAR = 2
INTRODUCTION = "Here is the original image {} and here are some crops to help you see better "
MAX_CROPS = 64


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """Crops of an image whose sides differ much, along its longer side."""

    least: int
    """Pixels of a side of a crop, at least."""
    most: int
    """Crops of an image, at most."""
    ratio: float
    """The ratio of the sides from which an image has crops."""

    def crop_size(self, width: int, height: int) -> Size | None:
        """Return the sides of a crop; None for no crops. After `pan_and_scan` of transformers' image processor."""
        longer, shorter = max(width, height), min(width, height)
        if longer / shorter < self.ratio:
            return None
        count = min(longer // self.least, math.floor(longer / shorter + 0.5))
        size = math.ceil(longer / min(self.most, max(2, count)))
        if min(size, shorter) < self.least:
            return None
        return (size, height) if width >= height else (width, size)


@dataclass(frozen=True, slots=True)
class Gemma3Preparer(Preparer):
    """After `Gemma3ImageProcessor` and `Gemma3Processor` of transformers."""

    end: str
    side: int
    crops: PanAndScan | None

    @classmethod
    def of(cls, settings: Settings) -> "Gemma3Preparer":
        """Read the settings. Raises `CheckpointError`."""
        fields, table = settings.preprocessor, settings.vision.table
        assert table is not None  # every tower of the family has one
        vision = settings.config.section("vision_config")
        assert vision is not None  # the tower was read from it
        patch = math.isqrt(settings.vision.patch_values // 3)
        side = settings.side("size", vision.integer("image_size", 224, most=8192), 8192)
        if side != table[0] * patch:
            raise fields.error("size", f"is not {table[0] * patch} pixels, those of the tower in config.json")
        return cls(
            placeholder=settings.token("boi_token_index", "<start_of_image>"),
            image_token=settings.image_token(),
            values=PixelValues.read(fields, HALF, HALF),
            layout=PatchLayout(patch, math.isqrt(settings.vision.group), True),
            filter=settings.filter(BILINEAR),
            end=settings.token("eoi_token_index", "<end_of_image>"),
            side=side,
            crops=_pan_and_scan(fields),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> Plan:
        size = (self.side, self.side)
        sequence = f"\n\n{self.placeholder}{self.run(size)}{self.end}\n\n"
        count = len(self._boxes(width, height))
        text = INTRODUCTION.format(sequence) + " ".join([sequence] * count) if count else sequence
        return Plan(text, (size,) * (1 + count))

    def tiles(self, picture: Pillow.Image, plan: Plan) -> Iterator[Pillow.Image]:
        yield self.resized(picture, plan.sizes[0])
        for box in self._boxes(*picture.size):
            yield self.resized(picture.crop(box), plan.sizes[0])

    def _boxes(self, width: int, height: int) -> list[tuple[int, int, int, int]]:
        """Return the left, upper, right and lower edges of the crops."""
        size = None if self.crops is None else self.crops.crop_size(width, height)
        if size is None:
            return []
        lefts, tops = range(0, width, size[0]), range(0, height, size[1])
        return [(x, y, min(x + size[0], width), min(y + size[1], height)) for y in tops for x in lefts]


def _pan_and_scan(fields: Fields) -> PanAndScan | None:
    if not fields.flag("do_pan_and_scan", False):
        return None
    return PanAndScan(
        fields.integer("pan_and_scan_min_crop_size", 256, most=8192),
        fields.integer("pan_and_scan_max_num_crops", 4, most=MAX_CROPS),
        fields.number("pan_and_scan_min_ratio_to_activate", 1.2),
    )
