"""The interface of the rows of embeddings that negative numbers among the tokens of a chunk stand for."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ChunkRows(Protocol):
    """Rows that a client has given (`PromptEmbeddings`), or a vision tower (`ImageRows`). They are never changed."""

    @property
    def width(self) -> int:
        """Numbers of a row."""

    def has(self, number: int) -> bool:
        """Return whether a number stands for one of the rows."""

    def put(self, tokens: Sequence[int], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write the tokens of a chunk to `ids` [len(tokens)], -1 for each row, and the rows to `out` [len(tokens),
        width or more]."""
