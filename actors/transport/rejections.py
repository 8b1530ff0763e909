"""What was refused on the links, by why: counted, so that an operator sees who knocks."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum


class Refusal(StrEnum):
    """Why a connection, a message or a peer was refused."""

    HANDSHAKE = "handshake"
    """What connected does not speak ZeroMQ, not with the keys that are asked for, hung up before it said `Hello`, or
    came to a link that has its peer."""
    KEY = "key"
    """Its key is not on the allow-list."""
    RATE = "rate"
    """Too many connections of strangers, from one address or in all."""
    FULL = "full"
    """The process has no room for another connection: its descriptors are taken, or kept for itself."""
    SILENT = "silent"
    """It connected and did not say `Hello` in time."""
    MESSAGE = "message"
    """A message has too many frames, or too many bytes."""
    GAP = "gap"
    """A message came without the number that was due: one was lost before it."""
    FLOOD = "flood"
    """More messages or bytes a second than any worker has to say."""
    FRAME = "frame"
    """Bytes that are no frame, or a frame out of its order."""
    VERSION = "version"
    """A `Hello` of another protocol version."""
    INCARNATION = "incarnation"
    """A `Hello` of another incarnation, or in another worker's name."""
    MODEL = "model"
    """A `Hello` with another model than the one of that name, or than before."""
    TAKEN = "taken"
    """A worker of that name is here already, was told to stay away, or comes again too soon."""


class Refusals:
    """Counts, one object for a gateway. Whoever refuses something counts it here."""

    def __init__(self) -> None:
        self._counts: Counter[Refusal] = Counter()

    def count(self, why: Refusal) -> None:
        self._counts[why] += 1

    @property
    def total(self) -> Mapping[str, int]:
        """Every reason, also those that have not occurred."""
        return {why.value: self._counts[why] for why in Refusal}
