"""The number of rows that can be taken back from the recurrent states of MLX. Without the import of mlx."""

from workers.checkpoints.checkpoint import ModelConfig

MAX_ROLLBACK_ROWS = 8
"""The most rows of a slot that can be taken back: longer drafts are rarely accepted."""
ROLLBACK_BYTES = 64 << 20
"""The most memory of the states of one slot. Where it holds fewer than three, none are kept for rows."""


def rollback_rows(config: ModelConfig) -> int:
    """Return `RunnerCapabilities.rollback_rows`: none where that would be a single one, which has no drafts beside
    it."""
    if not config.state_bytes:
        return 0
    rows = min(MAX_ROLLBACK_ROWS, ROLLBACK_BYTES // config.state_bytes - 1)
    return rows if rows > 1 else 0
