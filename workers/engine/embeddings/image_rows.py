"""The rows of embeddings of images in a chunk, and the numbers that stand for them among the tokens. Pure.

A number is made of the digest of the image and the place of the row in it. The digest is of all that the rows depend
on, so that prefixes are found before anything is encoded.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 8


def row_numbers(key: bytes, count: int) -> tuple[int, ...]:
    """Return the numbers of the rows of an image with this digest: below 0, and above -(1 << 63)."""
    digests = (hashlib.blake2b(key + at.to_bytes(4, "little"), digest_size=DIGEST_BYTES) for at in range(count))
    return tuple(-1 - (int.from_bytes(digest.digest()) >> 2) for digest in digests)


class ImageRows:
    """The rows of the images of one chunk. They are never changed."""

    __slots__ = ("_index", "width")

    def __init__(self, width: int, images: Iterable[tuple[Sequence[int], NDArray[np.float32]]]) -> None:
        """`images` are the numbers of some rows of each image, and these rows: float32 [count, width]."""
        self.width = width
        self._index = {number: row for numbers, rows in images for number, row in zip(numbers, rows, strict=True)}

    def has(self, number: int) -> bool:
        """See `ChunkRows.has`."""
        return number in self._index

    def put(self, tokens: Sequence[int], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """See `ChunkRows.put`."""
        for at, token in enumerate(tokens):
            if token >= 0:
                ids[at] = token
            else:
                ids[at] = -1
                out[at, : self.width] = self._index[token]
