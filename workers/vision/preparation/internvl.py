"""InternVL's preprocessing: tiles in the grid whose ratio is closest to the image's, and the whole image."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image as Pillow

from protocol.request import ImageDetail
from workers.vision.preparation.lfm2 import MAX_TILES, Tiling, grid_ratios
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import CLIP_MEAN, CLIP_STD, PixelValues
from workers.vision.preparation.preparer import ImagePlan, Preparer
from workers.vision.preparation.settings import PreparationSettings

BICUBIC = 3
BEGIN, END = "<img>", "</img>"


@dataclass(frozen=True, slots=True)
class InternVlPreparer(Preparer):
    """After `GotOcr2ImageProcessor` and `InternVLProcessor` of transformers."""

    tiling: Tiling

    @classmethod
    def of(cls, settings: PreparationSettings) -> "InternVlPreparer":
        """Read the settings. Raises `CheckpointError`."""
        fields, table = settings.preprocessor, settings.vision.table
        assert table is not None  # every tower of the family has one
        settings.require(BEGIN, END)
        patch = math.isqrt(settings.vision.patch_values // 3)
        side = settings.side("size", 384, 8192)
        if side != table[0] * patch:
            raise fields.error("size", f"is not {table[0] * patch} pixels, those of the tower in config.json")
        least, most = (
            fields.integer(name, default, most=MAX_TILES) for name, default in (("min_patches", 1), ("max_patches", 12))
        )
        if least > most:
            raise fields.error("min_patches", f"{least} is above max_patches, {most}")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(fields, CLIP_MEAN, CLIP_STD),
            layout=PatchLayout(patch, math.isqrt(settings.vision.group), True),
            filter=settings.filter(BICUBIC),
            tiling=Tiling(side, grid_ratios(least, most), thumbnail=True, tolerance=0.0),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        side = self.tiling.side
        columns, rows = (1, 1) if detail == "low" else self.tiling.grid(width, height)
        count = columns * rows if columns * rows == 1 else columns * rows + 1
        tile = (side, side)
        text = f"{BEGIN}{self.run(tile) * count}{END}"
        return ImagePlan(text, (tile,) * count, (columns * side, rows * side))

    def tiles(self, picture: Pillow.Image, plan: ImagePlan) -> Iterator[Pillow.Image]:
        side = self.tiling.side
        whole = self.resized(picture, plan.whole)
        for top in range(0, whole.height, side):
            for left in range(0, whole.width, side):
                yield whole.crop((left, top, left + side, top + side))
        if len(plan.sizes) > 1:
            yield self.resized(picture, plan.sizes[-1])
