"""The number of rows that layers with an attention window keep of a slot on a CPU (docs/adr/0130)."""

from workers.checkpoints.architectures import window_ring
from workers.checkpoints.checkpoint import ModelConfig

TILE_ROWS = 64
"""Rows beside those that are cleared, which may be lost with them."""


def ring_rows(config: ModelConfig, slots: int, context: int) -> int:
    """Return the rows of a slot's ring, whole KV blocks; 0 where no ring is worth it."""
    return window_ring.ring_rows(config, context, drafted_rows(slots) + TILE_ROWS)


def kept_rows(ring: int, slots: int) -> int:
    """Return how many rows of a slot are in a ring for sure, whatever drafts were written behind them."""
    return ring - TILE_ROWS - drafted_rows(slots)


def drafted_rows(slots: int) -> int:
    """Return the most rows of a decode step that are of one slot."""
    return 2 * slots
