"""The store of records of streams, as far as streaming needs it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol


class RecordUnknown(Exception):
    """Raised when the store has no such record of this owner."""


class HeldElsewhere(Exception):
    """Raised when another gateway that is alive has the stream."""


class RecordsUnreachable(Exception):
    """Raised when the store does not answer."""


class StreamDemand(StrEnum):
    """A fact about a stream of this gateway, or a wish of its client, that it gets from another one."""

    CANCEL = "cancel"
    """Its client has cancelled it."""
    MOVE = "move"
    """Its client wants to resume it."""
    TAKEN = "taken"
    """It has been resumed."""


OnDemand = Callable[[str, StreamDemand], None]
"""Takes the id of a stream."""


class RecordStore(Protocol):
    """Records by the ids of streams. No token waits for it: what returns at once takes effect later."""

    def use(self, on_demand: OnDemand) -> None:
        """Set the function to call with what other gateways ask for."""

    def keep(self, stream_id: str, owner: str, record: bytes, resume_s: float) -> bool:
        """Store the record of a stream of this gateway. False without room."""

    def has(self, stream_id: str) -> bool:
        """The record is stored, as far as is known now: another gateway can continue the stream."""

    def forget(self, stream_id: str) -> None:
        """Delete a record."""

    def release(self, stream_id: str) -> None:
        """Let another gateway have the stream."""

    async def claim(self, stream_id: str, owner: str, *, ask: bool) -> bytes:
        """Make this gateway the one that has the stream, and return the record. With `ask` another one that is alive
        is asked to give it up. Raises `RecordUnknown`, `HeldElsewhere` and `RecordsUnreachable`."""

    async def cancel(self, stream_id: str, owner: str) -> None:
        """Cancel a stream, at the gateway that has it. Raises `RecordUnknown` and `RecordsUnreachable`."""
