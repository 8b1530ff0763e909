"""Turns the images of a request into files: decodes, fetches and checks them, and makes their digests."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import anyio.to_thread

from gateway.body_budget import HeldBody
from gateway.errors import RequestError, invalid
from gateway.images.base64_file import decode_base64
from gateway.images.checks import checked_image
from gateway.images.sources import GivenImage, too_large
from gateway.settings import GatewaySettings
from protocol.bounds import IMAGE_DIGEST_BYTES, MAX_IMAGE_BYTES, MAX_IMAGES_PIXELS
from protocol.errors import ErrorCode
from protocol.request import Image

if TYPE_CHECKING:
    from gateway.images.fetching import ImageFetcher

HASHED_AT_ONCE = 256 * 1024
"""Bytes of a file that is hashed on the event loop, in 0.4 ms. Hashing a larger one in a thread does not hold it."""


class ImageLoader:
    """Loads the images of requests. Used on one event loop."""

    def __init__(self, settings: GatewaySettings, fetcher: "ImageFetcher | None" = None) -> None:
        """`fetcher` is by default one for the hosts of the settings; none, if there are none."""
        self._fetcher = fetcher
        if fetcher is None and settings.allow_image_urls:
            # Loaded when it is needed: most servers fetch nothing, and httpx takes 0.1 s to import.
            from gateway.images.fetching import ImageFetcher

            self._fetcher = ImageFetcher(settings.allow_image_urls)

    def check(self, sources: Sequence[GivenImage]) -> None:
        """Raise `RequestError` for the first image with a URL that is not fetched."""
        for source in sources:
            if source.kind == "url":
                self._fetches(source).check(source)

    async def load(self, sources: Sequence[GivenImage], client: str, held: HeldBody) -> tuple[Image, ...]:
        """Return the images. `held` counts those that are fetched; the others came with its body. Raises
        `RequestError` naming the field of an image."""
        found: list[Image] = []
        left, pixels = MAX_IMAGE_BYTES, MAX_IMAGES_PIXELS
        for source in sources:
            if source.kind == "url":
                data = await self._fetches(source).fetch(source, client, left, held)
            else:
                data = await decode_base64(source)
            left -= len(data)
            if left < 0:
                raise too_large(source.field)
            image = checked_image(data, source.field, source.detail, await _digest(data))
            pixels -= image.width * image.height
            if pixels < 0:
                field = source.field
                text = f"`{field}`: the images of a request have over {MAX_IMAGES_PIXELS} pixels together"
                raise invalid(field, text)
            found.append(image)
        return tuple(found)

    def _fetches(self, source: GivenImage) -> "ImageFetcher":
        if self._fetcher is None:
            raise _not_fetched(source.field)
        return self._fetcher


def _not_fetched(field: str) -> RequestError:
    text = (
        f"`{field}`: images are not fetched by this server; send a data URL, or let it fetch from this host with "
        "--allow-image-url (`allow_image_urls`)"
    )
    return invalid(field, text, ErrorCode.UNSUPPORTED)


async def _digest(data: bytes) -> bytes:
    if len(data) <= HASHED_AT_ONCE:
        return _blake2b(data)
    return await anyio.to_thread.run_sync(_blake2b, data)


def _blake2b(data: bytes) -> bytes:
    return blake2b(data, digest_size=IMAGE_DIGEST_BYTES).digest()
