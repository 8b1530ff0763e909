"""Noise for sampling from a counter-based generator: a token's noise is a function of (seed, position) alone.

Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the
Random123 library). It needs additions, rotations and exclusive ors of 32-bit words only, which every array library and
device computes identically. Written against an array namespace `xp`: numpy, jax.numpy or mlx.core.
"""

from typing import Any

Array = Any
"""Array of the caller's namespace."""

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
GROUPS = 5
"""Groups of four rounds; part of the key is added after each."""
COIN = 1
"""The stream of the coins of XTC. That of the sampled tokens is 0."""


def noise(xp: Any, seed_low: Array, seed_high: Array, position: Array, stream: int = 0) -> Array:
    """Return 32 uniform random bits for each row: uint32 [B] from three uint32 [B]. The counter is (position,
    stream)."""
    keys = (seed_low, seed_high, seed_low ^ seed_high ^ xp.array(PARITY, dtype=xp.uint32))
    left, right = position + keys[0], keys[1]
    if stream:
        right = right + xp.array(stream, dtype=xp.uint32)
    for group in range(GROUPS):
        for rotation in ROTATIONS[group % 2]:
            left = left + right
            right = ((right << rotation) | (right >> (32 - rotation))) ^ left
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + xp.array(group + 1, dtype=xp.uint32)
    return left
