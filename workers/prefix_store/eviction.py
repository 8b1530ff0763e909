"""The order in which blocks are evicted. Pure.

The time of a block's file is that of its last reuse, or later: each reuse defers its eviction.
"""

import heapq
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from workers.prefix_store.block import KEY_BYTES

REUSE_S = 60.0
"""Seconds by which each reuse defers the eviction of a block."""
MOST_AHEAD_S = 3600.0
"""The most that reuses defer it."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The file of a block."""

    name: str
    size: int
    evict_at: float
    """The time that decides when it goes: of blocks that nothing follows, the one with the lowest is the first."""

    @property
    def key(self) -> str:
        """The key of the block, in hexadecimal digits."""
        return self.name[: 2 * KEY_BYTES]

    @property
    def parent(self) -> str:
        """The key of the block before it."""
        return self.name[2 * KEY_BYTES + 1 :]


def evict_at(modified: float, now: float) -> float:
    """Return `StoredBlock.evict_at` for the time of a file. One that is far later than reuses defer any is from before
    the clock was set back, and counts as the oldest."""
    return modified if modified <= now + 2 * MOST_AHEAD_S else 0.0


def deferred(modified: float, now: float) -> float:
    """Return the time that a file has after a reuse."""
    return min(max(evict_at(modified, now), now) + REUSE_S, now + MOST_AHEAD_S)


def eviction_order(blocks: Mapping[str, StoredBlock], pinned: Set[str]) -> Iterator[StoredBlock]:
    """Yield blocks, given by their keys, in the order in which they are evicted: the last ones of prefixes first, of
    these those whose reuse is longest ago. No block comes before those that follow it, and none that is `pinned`.

    The caller may remove a block that was yielded from `blocks`.
    """
    following: dict[str, int] = {}
    for block in blocks.values():
        following[block.parent] = following.get(block.parent, 0) + 1
    last = [
        (block.evict_at, block.key)
        for block in blocks.values()
        if block.key not in following and block.key not in pinned
    ]
    heapq.heapify(last)
    while last:
        _, key = heapq.heappop(last)
        block = blocks[key]
        yield block
        following[block.parent] -= 1
        before = blocks.get(block.parent)
        if before is not None and not following[block.parent] and before.key not in pinned:
            heapq.heappush(last, (before.evict_at, before.key))
