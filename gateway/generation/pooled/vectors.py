"""The vectors of an answer."""

import struct
from collections.abc import Sequence

from gateway.generation.delta import OutputDelta, VectorDelta


def numbers(vector: bytes) -> tuple[float, ...]:
    """Return the numbers of a vector in float32, little-endian."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def vectors(deltas: Sequence[OutputDelta]) -> dict[int, bytes]:
    """Return the vectors of an answer by the index of their prompt."""
    return {delta.index: delta.vector for delta in deltas if isinstance(delta, VectorDelta)}
