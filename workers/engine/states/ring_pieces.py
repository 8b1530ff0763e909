"""Computes the places of the rows of a slot in a ring. Pure."""

from collections.abc import Iterator


def ring_pieces(start: int, end: int, ring: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a ring, as first place and the one after the last, that have rows `start .. end` of a slot:
    row r is at r % `ring`. There are two where the rows go beyond its end. Without a ring (0) rows lie at themselves.
    """
    if not ring:
        yield start, end
        return
    while start < end:
        low = start % ring
        high = min(low + end - start, ring)
        yield low, high
        start += high - low
