"""Loading images: bounds of bytes, and turns for others meanwhile."""

import anyio
import anyio.lowlevel
import pytest

from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RequestError
from gateway.images.base64_file import PIECE_CHARACTERS, decode_base64
from gateway.images.loading import ImageLoader
from gateway.images.sources import MAX_BASE64, GivenImage, GivenImages
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGES_PIXELS
from tests.gateway.images.files import PNG, base64_of, png_header

pytestmark = pytest.mark.anyio
PIECES = 16
LARGE = PNG + bytes(PIECES * PIECE_CHARACTERS * 3 // 4 - len(PNG))


def held() -> HeldBody:
    return HeldBody(BodyBudget(1 << 30, 1))


async def test_others_have_turns_while_a_large_image_is_decoded() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        turns = 0
        assert await decode_base64(GivenImage("images[0]", "base64", base64_of(LARGE))) == LARGE
        group.cancel_scope.cancel()
    assert turns >= PIECES - 1


@pytest.mark.parametrize("at", [0, PIECE_CHARACTERS - 3, PIECE_CHARACTERS, PIECE_CHARACTERS + 1])
@pytest.mark.parametrize("junk", ["=", "*", "\u00e9", "A"])
async def test_no_character_that_does_not_belong_is_skipped(at: int, junk: str) -> None:
    text = base64_of(LARGE[: PIECE_CHARACTERS * 3 // 2])
    with pytest.raises(RequestError, match=r"`images\[0\]` is not (base64|an image)"):
        await decode_base64(GivenImage("images[0]", "base64", text[:at] + junk + text[at:]))


async def test_line_breaks_anywhere_are_skipped() -> None:
    text = base64_of(LARGE[: PIECE_CHARACTERS * 3 // 2])
    for at in (1, PIECE_CHARACTERS - 2, PIECE_CHARACTERS, PIECE_CHARACTERS + 1):
        broken = text[:at] + "\r\n" + text[at:]
        assert base64_of(await decode_base64(GivenImage("images[0]", "base64", broken))) == text


async def test_bounds_of_the_bytes_of_all_images() -> None:
    sources = GivenImages()
    sources.add_base64("A" * (MAX_BASE64 - 4), "images[0]")
    sources.add_base64("AAAA", "images[1]")
    with pytest.raises(RequestError, match=f"`images\\[2\\]`: .* have over {MAX_IMAGE_BYTES} bytes"):
        sources.add_base64("A", "images[2]")
    half = base64_of(PNG + bytes(MAX_IMAGE_BYTES // 2 - len(PNG)))
    loader = ImageLoader(GatewaySettings())
    whole = [GivenImage(f"images[{index}]", "base64", half) for index in range(2)]
    assert sum(len(each.data) for each in await loader.load(whole, "", held())) == MAX_IMAGE_BYTES
    more = [*whole, GivenImage("images[2]", "base64", base64_of(PNG))]
    with pytest.raises(RequestError, match=r"`images\[2\]`"):
        await loader.load(more, "", held())


async def test_bounds_of_the_pixels_of_all_images() -> None:
    loader = ImageLoader(GatewaySettings())
    headers = [png_header(8_000, 5_000)] * (MAX_IMAGES_PIXELS // 40_000_000)
    whole = [GivenImage(f"images[{index}]", "base64", base64_of(data)) for index, data in enumerate(headers)]
    assert len(await loader.load(whole, "", held())) == 4
    with pytest.raises(RequestError, match=rf"`images\[4\]`: .* have over {MAX_IMAGES_PIXELS} pixels"):
        await loader.load([*whole, GivenImage("images[4]", "base64", base64_of(PNG))], "", held())
