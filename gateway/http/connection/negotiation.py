"""The choice between HTTP/1.1 and HTTP/2, by the first bytes of a connection."""

from collections.abc import Awaitable, Callable

from hypercorn.events import Event, RawData, Updated

from gateway.http.connection.frame_budget import PREFACE
from gateway.http.connection.http1 import Http1
from gateway.http.connection.http2 import Http2


class Negotiation:
    """The protocol of a connection: HTTP/2 if it starts with HTTP/2's preface (RFC 9113, 3.3), otherwise HTTP/1.1. Over
    TLS it is what the handshake has chosen (RFC 9113, 3.2), and HTTP/1.1 if that was nothing.

    Hypercorn 0.17 and 0.18 also take the preface in place of a later HTTP/1.1 request, where a proxy in front sees the
    body or the tunnel of a client.
    """

    def __init__(
        self,
        http1: Callable[[], Http1],
        http2: Callable[[], Http2],
        send: Callable[[Event], Awaitable[None]],
        *,
        chosen: bool | None = None,
    ) -> None:
        """`chosen`: whether the handshake has chosen HTTP/2; None without TLS."""
        self._chosen = chosen
        self._http1 = http1
        self._http2 = http2
        self._send = send
        self._first = b""
        self.protocol: Http1 | Http2 | None = None
        """None while it is not known."""

    async def handle(self, event: Event) -> None:
        """Handle what the connection has received, or that it has closed."""
        if self.protocol is not None:
            await self.protocol.handle(event)
        elif isinstance(event, RawData):
            await self._choose(event.data)

    async def _choose(self, data: bytes) -> None:
        self._first += data
        prefaced = self._first.startswith(PREFACE)
        if self._chosen is None and data and not prefaced and PREFACE.startswith(self._first):
            return
        if prefaced if self._chosen is None else self._chosen:
            await self._send(Updated(idle=False))
            self.protocol = self._http2()
            await self.protocol.initiate()
        else:
            self.protocol = self._http1()
        first, self._first = self._first, b""
        await self.protocol.handle(RawData(first))
        if first and not data:
            await self.protocol.handle(RawData(b""))
