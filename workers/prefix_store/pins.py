"""Pins: blocks that are not evicted for some time, because a client has asked for it. Pure.

Of the pins of one owner, and of all together, the latest stay within their bound; older ones are dropped. A block that
is pinned again is among the latest, and so are those before it: whatever is dropped, no pinned block is left without
those before it.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.prefix_store.block import KEY_BYTES, RowBlock

OWNER_SHARE = 1 / 8
"""Share of the bytes of a store that the pins of one owner may have."""
PINNED_SHARE = 1 / 2
"""Share that all pins may have."""
MAX_PIN_S = 86_400.0
"""The longest that a block stays pinned without being asked for again."""
_RECORD = struct.Struct(f"<{KEY_BYTES}s{KEY_BYTES}sdQ")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PinnedBlock:
    """One block that an owner has pinned."""

    owner: bytes
    key: bytes
    until: float
    """The time at which it ends, in seconds since 1970."""
    size: int
    """Bytes of its file."""


def owner_key(owner: str) -> bytes:
    """Return what stands for an owner in a file."""
    return hashlib.blake2b(owner.encode(), digest_size=KEY_BYTES).digest()


def most_pinned(max_bytes: int, size: int, beside: int = 0) -> int:
    """Return the blocks of `size` bytes that one owner may pin in a store of `max_bytes`, with one of `beside`."""
    return max(0, int(OWNER_SHARE * max_bytes) - beside) // size


def is_live(pin: PinnedBlock, now: float) -> bool:
    """Return whether a pin has not ended. One that is far later than any can be was made before the clock was set
    back, and has."""
    return now < pin.until <= now + 2 * MAX_PIN_S


def pin(
    pins: Iterable[PinnedBlock], owner: bytes, blocks: Sequence[RowBlock], size: int, until: float, now: float
) -> list[PinnedBlock]:
    """Return the pins, oldest first, with the first blocks of a prefix among them. None ends before it did; those that
    have ended are left out."""
    live = [each for each in pins if is_live(each, now)]
    before = {each.key: each.until for each in live if each.owner == owner}
    keys = {block.key for block in blocks}
    kept = [each for each in live if each.owner != owner or each.key not in keys]
    added = [PinnedBlock(owner, block.key, max(until, before.get(block.key, 0.0)), size) for block in reversed(blocks)]
    return kept + added


def within(pins: Sequence[PinnedBlock], max_bytes: int) -> list[PinnedBlock]:
    """Return the latest pins that stay within the bounds of a store, oldest first."""
    kept: list[PinnedBlock] = []
    total, of_owner = 0, dict[bytes, int]()
    full: set[bytes] = set()
    for each in reversed(pins):
        taken = of_owner.get(each.owner, 0) + each.size
        if each.owner in full or taken > OWNER_SHARE * max_bytes:
            full.add(each.owner)  # a smaller block behind this one may follow it
            continue
        if total + each.size > PINNED_SHARE * max_bytes:
            break
        of_owner[each.owner] = taken
        total += each.size
        kept.append(each)
    return kept[::-1]


def encode(pins: Sequence[PinnedBlock]) -> bytes:
    """Return the contents of the file of pins."""
    records = b"".join(_RECORD.pack(each.owner, each.key, each.until, each.size) for each in pins)
    return records + _CHECKSUM.pack(zlib.crc32(records))


def decode(data: bytes) -> list[PinnedBlock]:
    """Return the pins of a file; none of one that is damaged."""
    records = data[: -_CHECKSUM.size]
    if len(records) % _RECORD.size or data[-_CHECKSUM.size :] != _CHECKSUM.pack(zlib.crc32(records)):
        return []
    return [PinnedBlock(*fields) for fields in _RECORD.iter_unpack(records)]
