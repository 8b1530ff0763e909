"""The rows of embeddings that the vision tower has computed, for prompts that have the same image. Pure.

Rows are shared within a tenant only, as cache rows are: a hit is faster, which would reveal to one tenant what another
has sent.
"""

from collections import OrderedDict
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from workers.engine.embeddings.image_rows import ImageRows
from workers.engine.images.prompt_images import PlacedImage
from workers.engine.request import EngineRequest

ImageKey = tuple[str, bytes]
"""A tenant, and the digest of an image."""
DEFAULT_CACHE_BYTES = 256_000_000
"""Bytes of rows that are kept: some 120 images of 256 tokens, with rows of 2,048 numbers."""


class ImageRowCache:
    """Bounded in bytes; the rows that were used least recently are dropped first. Rows that prompts still need are kept
    beyond the bound: as many as fit into the contexts of all slots."""

    def __init__(self, width: int, max_bytes: int) -> None:
        """`width` are the numbers of a row. With `max_bytes` 0 only what prompts need is kept."""
        self.width = width
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.hits = 0
        """Images that prompts took rows of that were not computed for them."""
        self._rows: OrderedDict[ImageKey, NDArray[np.float32]] = OrderedDict()
        self._first: dict[ImageKey, int] = {}
        """Streams for which rows were computed, until they use them."""

    def has(self, key: ImageKey) -> bool:
        """Return whether there are the rows of an image."""
        return key in self._rows

    def missing(self, request: EngineRequest, start: int) -> PlacedImage | None:
        """Return the first image of a prompt that is needed behind its first `start` rows, and is not here."""
        images = () if request.images is None else request.images.images
        return next(
            (each for each in images if each.end > start and (request.tenant, each.key) not in self._rows), None
        )

    def available(self, request: EngineRequest, start: int, length: int) -> int:
        """Return how many of the next `length` tokens behind the first `start` ones can be computed now."""
        missing = self.missing(request, start)
        return length if missing is None else max(0, min(length, missing.start - start))

    def rows_of(self, request: EngineRequest, start: int, end: int) -> ImageRows | None:
        """Return the rows of a chunk of a sequence, which are all here; None if it has none."""
        if request.images is None:
            return None
        parts = []
        for image in request.images.within(start, end):
            key = (request.tenant, image.key)
            mine = image.rows_in(start, end)
            if mine.start < mine.stop:
                parts.append((image.numbers[mine], self._rows[key][mine]))
            self._rows.move_to_end(key)
            if end >= image.end:
                self.hits += self._first.pop(key, None) != request.stream
        return ImageRows(self.width, parts) if parts else None

    def add(self, key: ImageKey, rows: NDArray[np.float32], stream: int, needed: Collection[ImageKey]) -> None:
        """Keep the rows of an image, computed for a stream, [tokens, width]. `needed` as in `trim`."""
        self._rows[key] = rows
        self._first[key] = stream
        self.used_bytes += rows.nbytes
        self.trim(needed)

    def trim(self, needed: Collection[ImageKey]) -> None:
        """Drop rows beyond the bound, but for those of images that prompts need."""
        if self.used_bytes <= self.max_bytes:
            return
        for key in [key for key in self._rows if key not in needed]:
            self.used_bytes -= self._rows.pop(key).nbytes
            self._first.pop(key, None)
            if self.used_bytes <= self.max_bytes:
                return
