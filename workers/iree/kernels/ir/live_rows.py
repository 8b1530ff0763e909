"""The live rows of a graph: those of sequences, which are its first ones. Padding rows follow."""

from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.value import Value

ONE_HEIGHT_ROWS = 64
"""The most rows of a graph whose products divide the live ones into blocks of one height."""
SEQUENCE_ROWS = 8
"""Live rows of a graph of many rows are a multiple of this: a sequence's rows follow each other. Other numbers take
more padding."""


def live_rows(live: Memory, rows: int) -> Value:
    """Return how many of a graph's `rows` are live, an index: int32 [1] in memory, bounded by `rows`."""
    return live.load_index([0]).minimum(rows)
