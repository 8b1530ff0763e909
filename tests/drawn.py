"""The tokens that a runner drew, where each must have got one."""

from collections.abc import Sequence


def drawn(tokens: Sequence[int | None]) -> list[int]:
    """Fails if logits were not numbers, or if there was no draw."""
    found = [token for token in tokens if token is not None]
    assert len(found) == len(tokens), tokens
    return found
