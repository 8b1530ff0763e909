"""The gateway whose port this one took over, as far as streaming needs it: it still keeps its clients' streams."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class PeerUnreachable(Exception):
    """Raised by a `PeerGateway` that is gone."""


class PeerResponse(Protocol):
    """The response of another gateway."""

    status: int

    @property
    def retry_after(self) -> str: ...

    @property
    def content_type(self) -> str: ...

    @property
    def anywhere(self) -> bool: ...

    def body(self) -> AsyncIterator[bytes]:
        """The body in parts, as they arrive. Raises `PeerUnreachable`."""


class PeerGateway(Protocol):
    """Another gateway, to which requests for streams that are unknown here are forwarded."""

    pid: int
    """Its process; 0 if the port was free."""

    def ask(self, method: str, target: str, headers: dict[str, str]) -> AbstractAsyncContextManager[PeerResponse]:
        """Send a request. Raises `PeerUnreachable`."""
