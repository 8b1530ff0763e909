"""LLaVA's images that are made square: what Pillow makes of the whole square, without its memory."""

from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from workers.vision.image_refused import ImageRefused
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
