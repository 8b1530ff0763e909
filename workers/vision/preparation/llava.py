"""LLaVA's preprocessing: the shorter side gets the size of the tower, and the longer one is cropped; and that of
LLaVA-OneVision, the whole image and tiles of the size of the tower."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image as Pillow

from protocol.bounds import MAX_IMAGE_PIXELS
from protocol.request import ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.vision.packing import TileGrid
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
MAX_TILES = 64
"""Tiles of an image, at most."""
MAX_GRIDS = 256
PUBLISHED_SIDES = range(384, 2305, 384)
"""Heights, and widths, of the images in tiles, by the defaults of transformers."""
ANYRES = re.compile(r"anyres_max_([1-9]\d{0,2})")
Grid = tuple[int, int]
"""Rows and columns of tiles."""


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
            yield squared(picture, self.side, self.background, self.filter)
            return
        picture = self.resized(picture, self._whole(*picture.size))
        left, top = ((each - self.side) // 2 for each in picture.size)
        yield picture.crop((left, top, left + self.side, top + self.side))

    def _whole(self, width: int, height: int) -> Size:
        """Return the sides with the shorter one as configured."""
        if width <= height:
            return self.side, int(self.side * height / width)
        return int(self.side * width / height), self.side


@dataclass(frozen=True, slots=True)
class LlavaOnevisionPreparer(Preparer):
    """After `LlavaOnevisionImageProcessor` and `LlavaOnevisionProcessor` of transformers, for images."""

    side: int
    """Pixels of a side of the tower's images."""
    background: tuple[int, int, int]
    """The colour of what is added to make an image of low detail square."""
    grids: tuple[Grid, ...]
    most: int
    """See `TileGrid.most`."""
    several_low: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: PreparationSettings) -> "LlavaOnevisionPreparer":
        """Read the settings. Raises `CheckpointError`."""
        fields, config, table = settings.preprocessor, settings.config, settings.vision.table
        assert table is not None  # every tower of the family has one
        patch = math.isqrt(settings.vision.patch_values // 3)
        side = settings.side("size", 384, 8192)
        if side // patch != table[0]:
            raise fields.error("size", f"is not that of the tower in config.json, {table[0]} patches of {patch} pixels")
        if fields.get("crop_size") is not None or fields.flag("do_center_crop", False):
            raise fields.error("do_center_crop", "is not supported for images that are tiled")
        aspect = config.get("vision_aspect_ratio", "anyres_max_9")
        if not isinstance(aspect, str) or (most := ANYRES.fullmatch(aspect)) is None:
            raise config.error("vision_aspect_ratio", f"{aspect!r} is not supported, only 'anyres_max_9' and the like")
        own = fields if fields.get("image_grid_pinpoints") is not None else config
        grids = _grids(own, side)
        if config.get("image_grid_pinpoints") is not None and _grids(config, side) != grids:
            raise fields.error("image_grid_pinpoints", "is not that of config.json")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(fields, CLIP_MEAN, CLIP_STD),
            layout=PatchLayout(patch, 1, True),
            filter=settings.filter(BICUBIC),
            side=side,
            background=_background(fields),
            grids=grids,
            most=int(most[1]),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        tile, side = (self.side, self.side), self.side // self.layout.patch
        if detail == "low":
            check_ratio(width, height, MAX_RATIO)
            grid = TileGrid(side)
            return ImagePlan(self.image_token * grid.count, (tile,), packed=grid)
        check_ratio(width, height)
        rows, columns = self._grid(width, height)
        grid = TileGrid.around(side, rows, columns, width, height, self.most)
        whole = (columns * self.side, rows * self.side)
        return ImagePlan(self.image_token * grid.count, (tile,) * grid.tiles, whole, grid)

    def _grid(self, width: int, height: int) -> Grid:
        """Return the grid that shows most pixels of an image, and of those the smallest. After
        `select_best_resolution` of transformers."""

        def fitness(grid: Grid) -> tuple[int, int]:
            high, wide = (each * self.side for each in grid)
            scale = min(wide / width, high / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            return shown, -(wide * high - shown)

        return max(self.grids, key=fitness)

    def tiles(self, picture: Pillow.Image, plan: ImagePlan) -> Iterator[Pillow.Image]:
        side = self.side
        if plan.whole == (0, 0):
            yield squared(picture, side, self.background, self.filter)
            return
        yield self.resized(picture, (side, side))
        whole = self._padded(picture, plan.whole)
        for top in range(0, whole.height, side):
            for left in range(0, whole.width, side):
                yield whole.crop((left, top, left + side, top + side))

    def _padded(self, picture: Pillow.Image, whole: Size) -> Pillow.Image:
        """Return a picture with its ratio kept, in the middle of a black one."""
        across, down = (new / old for new, old in zip(whole, picture.size, strict=True))
        if across < down:
            size = (whole[0], min(math.ceil(picture.height * across), whole[1]))
        else:
            size = (min(math.ceil(picture.width * down), whole[0]), whole[1])
        out = Pillow.new("RGB", whole)
        out.paste(self.resized(picture, size), ((whole[0] - size[0]) // 2, (whole[1] - size[1]) // 2))
        return out


def squared(
    picture: Pillow.Image, side: int, background: tuple[int, int, int], filter: Pillow.Resampling
) -> Pillow.Image:
    """Return a picture that is made square and resized. The square is never held, which may take 800 MB for a file of a
    few kB: Pillow resizes rows first, each for itself, and then columns, to which this adds nothing."""
    longer = max(picture.size)
    left, top = (longer - picture.width) // 2, (longer - picture.height) // 2
    narrow = Pillow.new("RGB", (side, longer), background)
    for at in range(0, picture.height, STRIP):
        rows = min(STRIP, picture.height - at)
        strip = Pillow.new("RGB", (longer, rows), background)
        strip.paste(picture.crop((0, at, picture.width, at + rows)), (left, 0))
        narrow.paste(strip.resize((side, rows), filter), (0, top + at))
    return narrow.resize((side, side), filter)


def _grids(fields: Fields, side: int) -> tuple[Grid, ...]:
    """Read the heights and widths of images in tiles of `side` pixels. Raises `CheckpointError`."""
    value = fields.get("image_grid_pinpoints")
    if value is None:
        value = [[height, width] for height in PUBLISHED_SIDES for width in PUBLISHED_SIDES]
    pairs = value if isinstance(value, list) else []
    whole = all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, int) and each > 0 for each in pair)
        for pair in pairs
    )
    if not whole or not 0 < len(pairs) <= MAX_GRIDS:
        raise fields.error("image_grid_pinpoints", f"is not a list of 1 to {MAX_GRIDS} pairs of height and width")
    grids = tuple((height // side, width // side) for height, width in pairs)
    for (height, width), (rows, columns) in zip(pairs, grids, strict=True):
        if height % side or width % side or rows * columns > MAX_TILES or height * width > MAX_IMAGE_PIXELS:
            bound = f"{MAX_TILES} tiles of {side} x {side}, and up to {MAX_IMAGE_PIXELS} pixels in all"
            raise fields.error("image_grid_pinpoints", f"{height} x {width} pixels are not 1 to {bound}")
    return grids


def _shortest(fields: Fields, settings: PreparationSettings) -> int:
    size = fields.section("size") if isinstance(fields.get("size"), dict) else None
    if size is None or size.get("shortest_edge") is None:
        return settings.side("size", 224, 8192)
    return size.integer("shortest_edge", most=8192)


def _background(fields: Fields) -> tuple[int, int, int]:
    red, green, blue = (int(float(each) * 255) for each in fields.get("image_mean") or CLIP_MEAN)
    return red, green, blue
