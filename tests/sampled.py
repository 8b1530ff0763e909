"""Asserts that a runner sampled a token for every row."""

from collections.abc import Sequence


def sampled(tokens: Sequence[int | None]) -> list[int]:
    """Return the tokens. Fails for a row with non-finite logits, and for one that was not to be sampled."""
    found = [token for token in tokens if token is not None]
    assert len(found) == len(tokens), tokens
    return found
