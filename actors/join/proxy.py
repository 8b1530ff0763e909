"""Joins two byte streams, each way, with backpressure: what one side does not take, the other may not send."""

import asyncio
from collections.abc import Callable


class ProxyEnd(asyncio.Protocol):
    """One of the two connections. The other one is given with `join`; until then nothing is read."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, when either of the two is gone; both are closed then."""
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._other: ProxyEnd | None = None
        self.received = 0
        """Bytes that it has brought so far."""
        self.ended = False

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def join(self, other: "ProxyEnd") -> None:
        """Let bytes flow between the two."""
        self._other, other._other = other, self
        self.transport.resume_reading()
        other.transport.resume_reading()

    def close(self) -> None:
        """Close this one, after what was written to it, and so the other."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """The same at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        assert self._other is not None
        self._other.transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and not self._other.ended:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other.ended:
            self._other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if self._other is not None:
            self._other.close()
        self._on_end()
