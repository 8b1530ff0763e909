"""The images that were prepared last: the answers of one request and the turns of a chat have the same ones."""

import hashlib
from collections import OrderedDict

from protocol.request import Image
from workers.process.prompts.images.image_source import PreparedSource

RECENT_BYTES = 64_000_000
"""Bytes of the patches that are kept."""
DIGEST_BYTES = 16


class RecentImages:
    """Keeps prepared images by tenant and file, the last used ones, up to a bound. Tenants share none: a known image is
    prepared faster, which would tell one what another has sent."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._images: OrderedDict[tuple[object, ...], PreparedSource] = OrderedDict()

    def find(self, tenant: str, image: Image) -> PreparedSource | None:
        """Return what was made of an image of a tenant; None if it is not known."""
        key = _key(tenant, image)
        if key not in self._images:
            return None
        self._images.move_to_end(key)
        return self._images[key]

    def add(self, tenant: str, image: Image, prepared: PreparedSource) -> None:
        """Keep an image of a tenant, and drop others beyond the bound."""
        self._images[_key(tenant, image)] = prepared
        self._used += _size(prepared)
        while self._used > self._max_bytes:
            _, dropped = self._images.popitem(last=False)
            self._used -= _size(dropped)

    def clear(self) -> None:
        """Drop all."""
        self._images.clear()
        self._used = 0


def _key(tenant: str, image: Image) -> tuple[object, ...]:
    digest = hashlib.blake2b(image.data, digest_size=DIGEST_BYTES).digest()
    return tenant, image.format, image.width, image.height, image.detail, digest


def _size(prepared: PreparedSource) -> int:
    return sum(part.values.nbytes for part in prepared.parts)
