"""The order in which llama.cpp's converter stores the rows and columns of a matrix, where it is not Hugging Face's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.quantized_matrix import Quantized

Indices = NDArray[np.intp]
MAX_ROWS = 1 << 20
"""Above any real number of rows or columns whose order is listed: metadata alone must not take absurd memory."""


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """The place in the file of each row and column of a matrix; None where they are in order."""

    rows: Indices | None = None
    columns: Indices | None = None
    stored_rows: int = 0
    """Rows in the file, where they are more than those that are taken; 0 if they are as many."""

    def restore(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor in the order of Hugging Face."""
        if self.rows is not None:
            stored = stored[self.rows]
        return stored if self.columns is None else np.ascontiguousarray(stored[:, self.columns])

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor has as many rows and columns as this order."""
        rows = self.rows is None or shape[0] == (self.stored_rows or len(self.rows))
        return rows and (self.columns is None or (len(shape) == 2 and shape[1] == len(self.columns)))

    def keeps_groups(self, group: int) -> bool:
        """Return whether every `group` columns that share a scale stay together, in order."""
        if self.columns is None:
            return True
        if len(self.columns) % group:
            return False
        first = self.columns.reshape(-1, group)[:, :1]
        together = np.array_equal(first + np.arange(group), self.columns.reshape(-1, group))
        return together and not np.any(first % group)

    def restore_quantized(self, stored: Quantized) -> Quantized:
        """Return a quantized matrix in the order of Hugging Face, if the order `keeps_groups`."""
        groups = None
        if self.columns is not None:
            groups = self.columns[:: stored.format.group] // stored.format.group
        ordered = StoredOrder(self.rows, groups)
        zeros = None if stored.zeros is None else ordered.restore(stored.zeros)
        return Quantized(stored.format, self.restore(stored.levels), ordered.restore(stored.scales), zeros)


IN_ORDER = StoredOrder()


def from_pairs(heads: int, rows: int) -> StoredOrder:
    """Rows of queries or keys whose rotated lanes lie side by side: row 2 i + h of a head is its row i + h * half."""
    return StoredOrder(np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1))


def heads_from_parts(heads: int, lanes: int) -> StoredOrder:
    """Rows of all queries, keys and values, which Hugging Face has head by head (GPT-NeoX)."""
    return StoredOrder(np.arange(3 * heads * lanes).reshape(3, heads, lanes).swapaxes(0, 1).reshape(-1))


def grouped_heads(groups: int, each: int, lanes: int) -> Indices:
    """Value heads of gated delta networks: the file has the first head of every key head, then the second ones, and
    Hugging Face those of a key head together."""
    return np.arange(groups * each * lanes).reshape(each, groups, lanes).swapaxes(0, 1).reshape(-1)
