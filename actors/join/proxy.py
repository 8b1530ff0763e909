"""Joins two byte streams, each way, with backpressure: what one side does not take, the other may not send."""

import asyncio
from collections.abc import Callable

CLOSE_S = 5.0
"""Time for what was written to a connection before it was closed. Without a bound, a peer that takes nothing (a lost
network, a stopped machine) would keep it open until TCP gives up, after a quarter of an hour."""


class ProxyEnd(asyncio.Protocol):
    """One of the two connections. The other one is given with `join`; until then nothing is read."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, when either of the two is gone; both are closed then."""
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._other: ProxyEnd | None = None
        self._abort: asyncio.TimerHandle | None = None
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
        """Close this one, after what was written to it, or after `CLOSE_S`; and so the other."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._abort = asyncio.get_running_loop().call_later(CLOSE_S, self._transport.abort)

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
        if self._abort is not None:
            self._abort.cancel()
        if self._other is not None:
            self._other.close()
        self._on_end()
