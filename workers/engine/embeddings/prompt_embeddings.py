"""Rows of embeddings in a prompt, and the numbers that stand for them among its tokens. Pure.

A sequence is a list of integers. A row of embeddings has a negative one, made of its content, so that equal numbers
mean equal rows: prefixes are found, retained and restored as those of tokens are, and no row is taken for a token.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 8


class InvalidEmbeddings(ValueError):
    """Raised for rows of embeddings that no model could compute with."""


class PromptEmbeddings:
    """The rows of one prompt. They are never changed."""

    __slots__ = ("_index", "ids", "rows")

    def __init__(self, rows: NDArray[np.float32]) -> None:
        """`rows` is [count, width]. Raises `InvalidEmbeddings` for another shape or type, and for numbers that are not
        finite."""
        if rows.ndim != 2 or not rows.size or rows.dtype != np.float32:
            raise InvalidEmbeddings(f"rows must be float32 [count, width], not {rows.dtype} {list(rows.shape)}")
        if not np.isfinite(rows).all():
            raise InvalidEmbeddings("the embeddings have numbers that are not finite")
        self.rows = np.ascontiguousarray(rows)
        """float32 [count, width]."""
        self.ids = tuple(_id_of(row) for row in self.rows)
        """The number that stands for each row: below 0, and above -(1 << 63)."""
        self._index = {number: at for at, number in enumerate(self.ids)}

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(self.rows.shape[1])

    def has(self, number: int) -> bool:
        """Return whether a number stands for one of the rows."""
        return number in self._index

    def put(self, tokens: Sequence[int], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write the tokens of a chunk to `ids` [len(tokens)], -1 for each row, and the rows to `out` [len(tokens),
        width or more]."""
        for at, token in enumerate(tokens):
            if token >= 0:
                ids[at] = token
            else:
                ids[at] = -1
                out[at, : self.width] = self.rows[self._index[token]]


def has_rows(tokens: Sequence[int]) -> bool:
    """Return whether any of the numbers stands for a row."""
    return min(tokens, default=0) < 0


def without_rows(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens among these numbers."""
    return tuple(token for token in tokens if token >= 0)


def _id_of(row: NDArray[np.float32]) -> int:
    digest = hashlib.blake2b(row.astype("<f4").tobytes(), digest_size=DIGEST_BYTES).digest()
    return -1 - (int.from_bytes(digest) >> 2)
