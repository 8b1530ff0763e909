"""A stored response, and the interface of stores."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

ENTRY_BYTES = 512
"""Memory of one response besides its own bytes."""

UNDER_WAY = ("queued", "in_progress")
"""The states of a response that has not ended."""


class StoreUnavailable(Exception):
    """Raised when a store cannot be opened, read or written. The message has the reason."""


class ChainBroken(Exception):
    """Raised when a response earlier in a conversation is not kept any more."""


class ChainTooLarge(Exception):
    """Raised when a conversation has more bytes than a request may have."""


class StoredResponse(Struct, frozen=True, kw_only=True):
    """One response with the input of its request."""

    id: str
    owner: str
    """The tenant of the API key, which is the only one that can use it."""
    created: int
    """Unix time in seconds."""
    status: str
    """That of the response."""
    deadline: int = 0
    """Unix time in seconds after which a response that has not ended has failed, as nothing generates it any more. 0
    for one that has ended."""
    previous: str = ""
    """The response that it continues; empty for none."""
    background: bool = False
    response: bytes
    """The response as JSON."""
    inputs: bytes
    """The input items of its own request as a JSON list."""

    echo_bytes: int = 0
    """Bytes of the response that repeat its request, such as tools. A conversation does not continue these."""

    @property
    def size(self) -> int:
        """The bytes that it counts for."""
        return ENTRY_BYTES + len(self.response) + len(self.inputs)

    @property
    def conversation_size(self) -> int:
        """The bytes that it adds to a conversation."""
        return self.size - self.echo_bytes


class ResponseStore(Protocol):
    """Keeps a bounded number of responses, and of bytes. Over a bound, the owner with the most bytes loses the response
    that was not used for the longest time. Methods raise `StoreUnavailable`."""

    async def put(self, response: StoredResponse) -> bool:
        """Keep a response, or replace it. False for one that is larger than all bytes."""

    async def get(self, owner: str, response: str) -> StoredResponse | None:
        """The response with this id, of this owner."""

    async def chain(self, owner: str, response: str, most: int) -> Sequence[StoredResponse]:
        """The responses of the conversation that ends with this one, which is the last. They count as used. Empty if
        there is no such response. Raises `ChainBroken`, and `ChainTooLarge` for more than `most` bytes."""

    async def delete(self, owner: str, response: str) -> bool:
        """Drop a response. False if there is none."""

    def close(self) -> None:
        """Release what it holds. It is not used again."""
