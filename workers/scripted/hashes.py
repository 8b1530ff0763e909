"""The hash of which the tokens, hidden states and keys of the scripted runner follow."""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.sampling.sample_spec import LogitEdits

MASK = (1 << 64) - 1
"""The largest hash."""


def mix(value: int) -> int:
    """Apply the 64-bit finalizer of MurmurHash3 (Appleby, public domain), in which every input bit counts."""
    value &= MASK
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    return value ^ (value >> 33)


def on_axes(time: int, row: int, column: int) -> int:
    """Return one number for the positions on three axes: the position, if all are equal."""
    return time if time == row == column else mix(time * 0x9E3779B97F4A7C15 + row * 0x100000001B3 + column)


def fingerprint(edits: LogitEdits) -> int:
    """Return a number that depends on the edits but not on their order."""
    order = np.argsort(edits.tokens, kind="stable")
    parts = (edits.tokens, edits.bias, edits.up, edits.down, edits.minus)
    return zlib.crc32(b"".join(part[order].tobytes() for part in parts))


def hidden_states(hashes: Sequence[int], width: int) -> NDArray[np.float32]:
    """Return float32 [len(hashes), width], each number between -0.5 and 0.5."""
    numbers = [[(mix(value + place) >> 40) / (1 << 24) - 0.5 for place in range(width)] for value in hashes]
    return np.array(numbers, np.float32).reshape(len(hashes), width)
