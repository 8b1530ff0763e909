"""The preprocessing of SmolVLM and Idefics 3: tiles of the size of the tower, and the whole image in the same size."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image as Pillow

from protocol.request import ImageDetail
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import HALF, PixelValues
from workers.vision.preparation.preparer import Plan, Preparer, Size
from workers.vision.preparation.settings import Settings

LANCZOS = 1
MAX_SIDE = 4096
"""Pixels of a side of the whole image, before it is cut into tiles."""


@dataclass(frozen=True, slots=True)
class Idefics3Preparer(Preparer):
    """After `SmolVLMImageProcessor` and `SmolVLMProcessor` of transformers."""

    longest: int
    """Pixels of the longer side of the image, before it is cut into tiles."""
    tile: int
    """Pixels of a side of a tile."""
    splits: bool
    around: str
    whole: str
    """The text before the tokens of the whole image."""

    @classmethod
    def of(cls, settings: Settings) -> "Idefics3Preparer":
        """Read the settings. Raises `CheckpointError`."""
        fields, table = settings.preprocessor, settings.vision.table
        assert table is not None  # every tower of the family has one
        patch = math.isqrt(settings.vision.patch_values // 3)
        tile = settings.side("max_image_size", 364, 8192)
        if tile // patch != table[0] or tile % patch:
            raise fields.error("max_image_size", f"is not {table[0] * patch} pixels, those of the tower in config.json")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(fields, HALF, HALF),
            layout=PatchLayout(patch, math.isqrt(settings.vision.group), True),
            filter=settings.filter(LANCZOS),
            longest=min(settings.side("size", 4 * 364, 1 << 14), MAX_SIDE),
            tile=tile,
            splits=fields.flag("do_image_splitting", True),
            around="<fake_token_around_image>",
            whole="<global-img>",
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> Plan:
        size = (self.tile, self.tile)
        resized = self._whole_size(*self._longest_size(width, height))
        columns, rows = (side // self.tile for side in resized)
        whole = f"{self.around}{self.whole}{self.run(size)}{self.around}"
        if not self.splits or detail == "low" or (rows, columns) == (1, 1):
            return Plan(whole, (size,))
        lines = "".join(
            "".join(f"{self.around}<row_{row}_col_{column}>{self.run(size)}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        return Plan(f"{lines}\n{whole}", (size,) * (rows * columns + 1), resized)

    def _longest_size(self, width: int, height: int) -> Size:
        """Return the sides with the longer one as configured, and an even shorter one."""
        ratio = width / height
        if width >= height:
            other = int(self.longest / ratio)
            return self.longest, max(1, other + other % 2)
        other = int(self.longest * ratio)
        return max(1, other + other % 2), self.longest

    def _whole_size(self, width: int, height: int) -> Size:
        """Return the sides as multiples of a tile's."""
        ratio = width / height
        if width >= height:
            wide = self._rounded(width)
            return wide, self._rounded(int(wide / ratio))
        high = self._rounded(height)
        return self._rounded(int(high * ratio)), high

    def _rounded(self, side: int) -> int:
        return math.ceil(side / self.tile) * self.tile

    def tiles(self, picture: Pillow.Image, plan: Plan) -> Iterator[Pillow.Image]:
        """Resize as transformers does: to the longer side, to multiples of a tile, and the whole image once more."""
        picture = self.resized(picture, self._longest_size(*picture.size))
        if len(plan.sizes) > 1 or self.splits:
            picture = self.resized(picture, self._whole_size(*picture.size))
        if len(plan.sizes) > 1:
            for top in range(0, picture.height, self.tile):
                for left in range(0, picture.width, self.tile):
                    yield picture.crop((left, top, left + self.tile, top + self.tile))
        yield self.resized(picture, plan.sizes[-1])
