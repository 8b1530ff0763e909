"""The rows that layers with an attention window keep of a slot, where they keep a ring (docs/adr/0130)."""

from workers.checkpoints.architectures.config import ModelConfig

BLOCK_ROWS = 128
"""A ring has a multiple of so many rows."""
LARGEST_CHUNK = 512
"""Rows of the longest prefill call."""
SPARE_ROWS = 256
"""Rows beyond those that a call needs: so many last rows of a slot can be given up, and a prefix of it be used."""


def ring_rows(config: ModelConfig, context: int, taken: int) -> int:
    """Return the rows of a slot's ring, of which `taken` are of drafts or lost otherwise.

    0 where no ring is worth it: the context is not twice as long, no layer has a window, all have one, or some have a
    recurrent state, which would be a second kind of state.
    """
    config = config.with_ring()
    rings = [config.in_ring(layer) for layer in config.kv_owners]
    rows = config.widest_window - 1 + LARGEST_CHUNK + SPARE_ROWS + taken
    rows = -(-rows // BLOCK_ROWS) * BLOCK_ROWS
    mixed = any(rings) and not all(rings) and config.widest_window > 1 and not config.state_layers
    return rows if mixed and context > 2 * rows else 0
