"""LFM2-VL's preprocessing: one image with a bounded number of tokens, or tiles and a thumbnail of a large one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image as Pillow

from protocol.request import ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import HALF, PixelValues
from workers.vision.preparation.preparer import ImagePlan, Preparer, Size
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.preparation.smart_resize import check_ratio, smart_resize

BILINEAR = 2
MAX_TILES = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """The grids of tiles that images are split into."""

    side: int
    """Pixels of a side of a tile."""
    ratios: tuple[Size, ...]
    """Columns and rows of the grids, those with fewer tiles first."""
    thumbnail: bool
    """The whole image follows the tiles."""
    tolerance: float
    """Only images of more pixels than those of the most tokens, times this, have tiles."""

    @classmethod
    def read(cls, fields: Fields, multiple: int) -> "Tiling | None":
        """Read the settings for tokens of so many pixels of a side. None for no tiles. Raises `CheckpointError`."""
        least, most = (
            fields.integer(name, default, most=MAX_TILES) for name, default in (("min_tiles", 2), ("max_tiles", 10))
        )
        if least > most:
            raise fields.error("min_tiles", f"{least} is above max_tiles, {most}")
        if not fields.flag("do_image_splitting", True) or least == most == 1:
            return None
        side = fields.integer("tile_size", 512, most=8192)
        if side % multiple:
            raise fields.error("tile_size", f"{side} pixels are no multiple of a token of {multiple} pixels")
        thumbnail, tolerance = fields.flag("use_thumbnail", True), fields.number("max_pixels_tolerance", 2.0)
        return cls(side, grid_ratios(least, most), thumbnail, tolerance)

    def grid(self, width: int, height: int) -> Size:
        """Return the columns and rows whose ratio is closest to that of the image; of those, the larger grid if the
        image has more than half of its pixels. After `find_closest_aspect_ratio` of transformers."""
        ratio, best, smallest = width / height, (1, 1), math.inf
        for columns, rows in self.ratios:
            difference = abs(ratio - columns / rows)
            larger = width * height > 0.5 * self.side**2 * columns * rows
            if difference < smallest or (difference == smallest and larger):
                best, smallest = (columns, rows), difference
        return best


def grid_ratios(least: int, most: int) -> tuple[Size, ...]:
    """Return the columns and rows of the grids of `least` to `most` tiles, those with fewer tiles first."""
    ratios = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= columns * rows <= most
    ]
    return tuple(sorted(ratios, key=lambda ratio: ratio[0] * ratio[1]))


@dataclass(frozen=True, slots=True)
class Lfm2Preparer(Preparer):
    """After `Lfm2VlImageProcessor` and `Lfm2VlProcessor` of transformers."""

    least: int
    """Pixels of an image, or of a thumbnail, at least."""
    most: int
    tiling: Tiling | None
    begin: str = "<|image_start|>"
    end: str = "<|image_end|>"
    thumbnail: str = "<|img_thumbnail|>"

    @classmethod
    def of(cls, settings: PreparationSettings) -> "Lfm2Preparer":
        """Read the settings. Raises `CheckpointError`."""
        fields = settings.preprocessor
        patch, merge = (
            fields.integer("encoder_patch_size", 16, most=256),
            fields.integer("downsample_factor", 2, most=64),
        )
        for name, own, other in (
            ("downsample_factor", merge**2, settings.vision.group),
            ("encoder_patch_size", 3 * patch**2, settings.vision.patch_values),
        ):
            if own != other:
                raise fields.error(name, "is not that of the tower in config.json")
        layout = PatchLayout(patch, merge, False)
        pixels = layout.multiple**2
        least, most = (
            fields.integer(name, default, most=1 << 16) * pixels
            for name, default in (("min_image_tokens", 64), ("max_image_tokens", 256))
        )
        if least > most:
            raise fields.error("min_image_tokens", "is above max_image_tokens")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(fields, HALF, HALF, resizes=True),
            layout=layout,
            filter=settings.filter(BILINEAR),
            least=least,
            most=most,
            tiling=Tiling.read(fields, layout.multiple),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        check_ratio(width, height)
        multiple = self.layout.multiple
        size = smart_resize(width, height, multiple, self.least, self.most, floor=multiple)
        tiling = self.tiling
        if tiling is None or detail == "low" or not self._is_large(width, height, tiling):
            return ImagePlan(f"{self.begin}{self.run(size)}{self.end}", (size,))
        columns, rows = tiling.grid(width, height)
        tile = (tiling.side, tiling.side)
        places = [(row, column) for row in range(1, rows + 1) for column in range(1, columns + 1)]
        text = "".join(f"<|img_row_{row}_col_{column}|>{self.run(tile)}" for row, column in places)
        sizes = (tile,) * len(places)
        if tiling.thumbnail:
            text, sizes = f"{text}{self.thumbnail}{self.run(size)}", (*sizes, size)
        return ImagePlan(f"{self.begin}{text}{self.end}", sizes, (columns * tiling.side, rows * tiling.side))

    def _is_large(self, width: int, height: int, tiling: Tiling) -> bool:
        patch, multiple = self.layout.patch, self.layout.multiple
        wide, high = (max(patch, round(side / multiple) * multiple) for side in (width, height))
        return wide * high > self.most * tiling.tolerance

    def tiles(self, picture: Pillow.Image, plan: ImagePlan) -> Iterator[Pillow.Image]:
        if plan.whole != (0, 0):
            whole, side = self.resized(picture, plan.whole), plan.sizes[0][0]
            for top in range(0, whole.height, side):
                for left in range(0, whole.width, side):
                    yield whole.crop((left, top, left + side, top + side))
        if plan.whole == (0, 0) or len(plan.sizes) > plan.whole[0] * plan.whole[1] // plan.sizes[0][0] ** 2:
            yield self.resized(picture, plan.sizes[-1])
