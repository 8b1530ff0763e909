"""The number of rows that layers with an attention window keep of a slot on a CPU (docs/adr/0130)."""

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.attention.shape import KV_BLOCK

LARGEST_CHUNK = 512
"""Rows of the longest prefill call."""
SPARE_ROWS = 256
"""Rows beyond those that a call needs: so many last rows of a slot can be given up, and a prefix of it be used."""
TILE_ROWS = 64
"""Rows beside those that are cleared, which may be lost with them."""


def ring_rows(config: ModelConfig, slots: int, context: int) -> int:
    """Return the rows of a slot's ring, whole KV blocks; 0 where no ring is worth it: the context is not twice as long,
    no layer has a window, all have one, or some have a recurrent state, which would be a second kind of state."""
    config = config.with_ring()
    rings = [config.in_ring(layer) for layer in config.kv_owners]
    rows = config.widest_window - 1 + LARGEST_CHUNK + drafted_rows(slots) + SPARE_ROWS + TILE_ROWS
    rows = -(-rows // KV_BLOCK) * KV_BLOCK
    mixed = any(rings) and not all(rings) and config.widest_window > 1 and not config.state_layers
    return rows if mixed and context > 2 * rows else 0


def kept_rows(ring: int, slots: int) -> int:
    """Return how many rows of a slot are in a ring for sure, whatever drafts were written behind them."""
    return ring - TILE_ROWS - drafted_rows(slots)


def drafted_rows(slots: int) -> int:
    """Return the most rows of a decode step that are of one slot."""
    return 2 * slots
