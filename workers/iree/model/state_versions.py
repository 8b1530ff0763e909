"""The number of recurrent states of a slot on a CPU: one, and one more for each row that can be taken back."""

from workers.checkpoints.checkpoint import ModelConfig

MAX_ROLLBACK_ROWS = 8
"""The most rows that can be taken back: longer drafts are rarely accepted."""
ROLLBACK_BYTES = 64 << 20
"""The most memory of the states of one slot. Where it holds fewer than three, a slot has one."""


def rollback_rows(config: ModelConfig, slots: int) -> int:
    """Return how many rows of a decode step can be taken back (see `RunnerCapabilities.rollback_rows`): of at most as
    many rows as the step has, and none where that would be a single one, which has no drafts beside it."""
    if not config.state_bytes:
        return 0
    rows = min(MAX_ROLLBACK_ROWS, slots, ROLLBACK_BYTES // config.state_bytes - 1)
    return rows if rows > 1 else 0


def state_versions(config: ModelConfig, slots: int) -> int:
    """Return how many states a slot has."""
    return 1 + rollback_rows(config, slots)
