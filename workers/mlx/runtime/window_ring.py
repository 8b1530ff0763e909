"""The number of rows that layers with an attention window keep of a slot. Without the import of mlx."""

from workers.checkpoints.architectures import window_ring
from workers.checkpoints.checkpoint import ModelConfig

DRAFTED_ROWS = 8
"""Rows of drafted tokens that a decode step may have beside one of each slot."""


def ring_rows(config: ModelConfig, slots: int, context: int) -> int:
    """Return the rows of a slot's ring; 0 where no ring is worth it."""
    return window_ring.ring_rows(config, context, most_rows(slots))


def kept_rows(ring: int, slots: int) -> int:
    """Return how many rows of a slot are in a ring for sure, whatever drafts were written behind them."""
    return ring - most_rows(slots)


def most_rows(slots: int) -> int:
    """Return the most rows of a decode step, which may all be of one slot."""
    return slots + DRAFTED_ROWS
