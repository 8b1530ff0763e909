"""Rejections on the links, counted by reason."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum


class Rejection(StrEnum):
    """The reason why a connection, a message or a peer was rejected."""

    HANDSHAKE = "handshake"
    """The peer does not speak ZeroMQ, or not with the required keys, hung up before its `Hello`, or came to a link that
    has its peer."""
    KEY = "key"
    """Its key is not on the allow-list."""
    RATE = "rate"
    """Too many pending connections, from one address or in all."""
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
    """Bytes that do not decode to a frame, or a frame out of its order."""
    OUTPUT = "output"
    """Output or an end of a sequence that is not what was asked for."""
    VERSION = "version"
    """A `Hello` of another protocol version."""
    INCARNATION = "incarnation"
    """A `Hello` of another incarnation, or in another worker's name."""
    MODEL = "model"
    """A `Hello` with another model than the one of that name, or than before."""
    TAKEN = "taken"
    """A worker of that name is here already, was stopped here, or comes again too soon."""


class Rejections:
    """Counts, one object for a gateway. Everything that is rejected is counted here."""

    def __init__(self) -> None:
        self._counts: Counter[Rejection] = Counter()

    def count(self, why: Rejection) -> None:
        self._counts[why] += 1

    @property
    def total(self) -> Mapping[str, int]:
        """Every reason, also those that have not occurred."""
        return {why.value: self._counts[why] for why in Rejection}
