"""LLaVA's images that are made square: what Pillow makes of the whole square, without its memory."""

from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from workers.vision.image_refused import ImageRefused
from workers.vision.packing import TileGrid
from workers.vision.preparation.llava import STRIP, LlavaPreparer
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import PixelValues

BICUBIC = Pillow.Resampling.BICUBIC
COLOUR = (122, 116, 104)
VALUES = PixelValues(np.zeros((3, 256), np.float32))


def padded(picture: Pillow.Image, filter: Pillow.Resampling = BICUBIC) -> Any:
    preparer = LlavaPreparer("<image>", "<image>", VALUES, PatchLayout(14, 1, True), filter, 28, COLOUR)
    (tile,) = preparer.tiles(picture, preparer.plan(*picture.size, "auto"))
    return np.asarray(tile)


@pytest.mark.parametrize("filter", [Pillow.Resampling.NEAREST, Pillow.Resampling.BILINEAR, BICUBIC])
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (90, 31), (31, 90), (13, STRIP), (26, 2 * STRIP + 1), (600, 30)])
def test_pixels_are_those_of_the_resized_square(size: tuple[int, int], filter: Pillow.Resampling) -> None:
    pixels = np.random.default_rng(sum(size)).integers(0, 256, (size[1], size[0], 3), np.uint8)
    picture, longer = Pillow.fromarray(pixels), max(size)
    square = Pillow.new("RGB", (longer, longer), COLOUR)
    square.paste(picture, ((longer - size[0]) // 2, (longer - size[1]) // 2))
    np.testing.assert_array_equal(padded(picture, filter), np.asarray(square.resize((28, 28), filter)))


def test_a_long_image_takes_no_square_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    new = Pillow.new

    def counted(mode: str, sides: tuple[int, int], *colour: Any) -> Pillow.Image:
        made.append(sides[0] * sides[1])
        return new(mode, sides, *colour)

    picture = new("RGB", (250, 5000))
    monkeypatch.setattr(Pillow, "new", counted)
    assert padded(picture).shape == (28, 28, 3)
    assert max(made) == STRIP * 5000, "the square has 25 million pixels"


@pytest.mark.parametrize("size", [(16_384, 820), (20, 1)])
def test_the_longer_side_is_bounded_by_the_shorter_one(size: tuple[int, int]) -> None:
    preparer = LlavaPreparer("<image>", "<image>", VALUES, PatchLayout(14, 1, True), BICUBIC, 28, COLOUR)
    assert preparer.plan(*size, "auto").text == "<image>" * 4
    width, height = size
    with pytest.raises(ImageRefused, match=f"{height} x {width + height} pixels: one side is more than 20 times"):
        preparer.plan(height, width + height, "auto")


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (640, 480), (480, 641), (3000, 200)])
@pytest.mark.parametrize("tiles", [(1, 1), (1, 3), (2, 2), (6, 6)])
def test_packed_rows_are_as_many_as_planned_and_means_of_the_towers(
    tiles: tuple[int, int], size: tuple[int, int]
) -> None:
    grid = TileGrid.around(5, *tiles, *size, most=4)
    packing, newline = grid.packing(), grid.tiles * 25
    assert len(packing.sources) == len(packing.weights) == grid.count
    np.testing.assert_allclose(packing.weights.sum(axis=1), 1, rtol=1e-6)
    assert packing.weights.min() >= 0
    assert packing.sources.max(initial=0) <= newline
    rows = np.random.default_rng(3).standard_normal((newline, 3)).astype(np.float32)
    packed = packing.pack(rows, np.full(3, 9, np.float32))
    np.testing.assert_array_equal(packed[:25], rows[:25])
    ends = np.flatnonzero((packed == 9).all(axis=1))
    assert len(set(np.diff(ends))) <= 1, "each row of the grid is as long as the others"
    assert ends.max(initial=grid.count - 1) == grid.count - 1


def test_a_grid_that_is_not_resampled_has_the_rows_of_its_tiles() -> None:
    rows = np.arange(5 * 4, dtype=np.float32)[:, None]  # of tiles with two rows and columns
    packed = TileGrid(2, 2, 2, left=1, most=4).packing().pack(rows, np.array([-1], np.float32))
    np.testing.assert_array_equal(packed[:, 0], [0, 1, 2, 3, 5, 8, -1, 7, 10, -1, 13, 16, -1, 15, 18, -1])
