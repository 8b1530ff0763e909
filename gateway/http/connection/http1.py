"""HTTP/1.1 on one connection."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from h11._writers import ChunkedWriter
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol

from gateway.http.connection.lingering import Lingering
from gateway.http.connection.loop_turn import LoopTurn
from gateway.http.connection.refusal import HttpRefusal, RefusalRenderer, malformed, too_large, unsupported
from gateway.http.connection.request_head import http1_request
from gateway.http.connection.request_stream import RequestStream
from gateway.settings import GatewaySettings

QUEUED_BYTES = 65536
"""Bytes of a body at which the connection waits for the app to read."""
CHUNKS = 16384
BYTES_PER_CHUNK = 16
"""A body has at most `CHUNKS` chunks, and one more for each `BYTES_PER_CHUNK` bytes."""
HEADER_LINES = 1000
"""Headers of one request; h11 takes some 6 us of CPU time for each, in one turn of the loop."""
_BAD_BYTES = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)|\n[ \t]")
"""Control characters, a line that ends without CR, and a line that continues the one before."""


class _StrictBuffer(ReceiveBuffer):
    """h11's buffer, which refuses heads and trailers that other servers read otherwise.

    h11 0.16 takes lines that end with LF alone, folded lines and control characters.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        end = self._data.find(b"\n\r\n", max(0, self._multiple_lines_search - 1))
        if end >= 0 and self._data.count(b"\n", 0, end) > HEADER_LINES:
            raise h11.RemoteProtocolError("too many headers", error_status_hint=431)
        bad = _BAD_BYTES.search(self._data, 0, end + 1) if end >= 0 else None
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if bad is not None or (lines and end < 0):
            raise h11.LocalProtocolError("control characters, bare LF or a folded line in the headers")
        return lines


class Http1(H11Protocol):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's protocol, which reads bodies that the app does not, and ignores `Upgrade`.

    Hypercorn 0.17 and 0.18 accept `Upgrade: h2c` from anybody, which RFC 9113 (3.1) has deprecated: a proxy that
    forwards the header no longer sees the requests that follow. They close a connection whose body has not been read
    while the client still sends, which can destroy the answer on its way (RFC 9112, 9.6).
    """

    def __init__(
        self,
        *arguments: Any,
        settings: GatewaySettings,
        refusals: RefusalRenderer,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`write` takes the bytes of responses."""
        super().__init__(*arguments)
        self._write = write
        self.stream: RequestStream | None = None
        self.connection._receive_buffer = _StrictBuffer()
        self._settings = settings
        self._refusals = refusals
        self._began = 0.0
        """When the request's head had arrived."""
        self._announced_bytes = 0
        """The length of the body, if the request has one."""
        self._body_bytes = 0
        self._chunks = 0
        self._over = False
        """Nothing more is handled."""
        self._drain_timer: asyncio.TimerHandle | None = None

    async def handle(self, event: Event) -> None:
        """See `H11Protocol`."""
        if isinstance(event, Closed):
            await self._end()
        elif self._over:
            return
        await super().handle(event)

    async def _end(self) -> None:
        self._over = True
        await self.can_read.set()
        if self._drain_timer is not None:
            self._drain_timer.cancel()

    async def _handle_events(self) -> None:
        turn = LoopTurn()
        while not self._over:
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(_refusal(error, self._settings.max_header_bytes))
                return
            try:
                if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                    return
                await self._handle_event(event)
            except HttpRefusal as refusal:
                await self._refuse(refusal)
                return
            await turn.pause()

    async def _handle_event(self, event: Any) -> None:
        if isinstance(event, h11.Request):
            await self.send(Updated(idle=False))
            await self._create_stream(event)
        elif event is h11.PAUSED:
            await self.can_read.clear()
            await self.can_read.wait()
        elif isinstance(event, h11.Data):
            await self._take(event.data)
        elif self.stream is not None:
            await self.stream.handle(EndBody(stream_id=STREAM_ID))
        else:
            await self._maybe_recycle()

    async def _create_stream(self, request: h11.Request) -> None:
        # An `Upgrade` is ignored. h11 would stop reading until the response, and not notice that the client leaves.
        self.connection._cstate.pending_switch_proposals.clear()
        self._began = asyncio.get_running_loop().time()
        self._body_bytes = self._chunks = 0
        path, headers = http1_request(request.method, request.target, request.http_version, list(request.headers))
        self._announced_bytes = int(dict(headers).get(b"content-length", b"0"))
        self.stream = RequestStream(
            *(self.app, self.config, self.context, self.task_group),
            *(self.ssl, self.client, self.server, self.stream_send, STREAM_ID),
            most=QUEUED_BYTES,
            on_read=_ignore,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=path,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _take(self, data: bytes) -> None:
        """A part of the body. One that no app reads any more is discarded, within a bound."""
        self._body_bytes += len(data)
        self._chunks += 1
        if self._chunks > CHUNKS + self._body_bytes // BYTES_PER_CHUNK:
            raise malformed("the body is in too many small chunks")
        if self.stream is not None:
            await self.stream.handle(Body(stream_id=STREAM_ID, data=data))
        elif self._body_bytes > self._drained_bytes:
            await self._linger()

    @property
    def _drained_bytes(self) -> int:
        """The largest body that is read without an app."""
        return 2 * self._settings.max_body_bytes

    async def stream_send(self, event: StreamEvent) -> None:
        """See `H11Protocol`. Each token of a stream passes here: its chunk is framed (RFC 9112, 7.1) without h11, which
        takes ten times as long, and whose state a chunk does not change."""
        if self._over:
            return
        connection = self.connection
        if (
            type(event) is Body
            and event.data
            and type(connection._writer) is ChunkedWriter
            and connection.our_state is h11.SEND_BODY
        ):
            await self._write(b"%x\r\n%b\r\n" % (len(event.data), event.data))
        else:
            await super().stream_send(event)

    async def _send_h11_event(self, event: h11.Event) -> None:
        """See `H11Protocol`. The bytes go to the connection without an event."""
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
        else:
            await self._write(data)

    async def _maybe_recycle(self) -> None:
        """The response has ended: take the next request, once the body of this one has been read."""
        await self._close_stream()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        if self.connection.their_state is not h11.SEND_BODY or self.connection.our_state is h11.ERROR:
            await super()._maybe_recycle()
            return
        left_s = self._began + self._settings.body_timeout_s - asyncio.get_running_loop().time()
        drains = left_s > 0 and self._announced_bytes <= self._drained_bytes and not self.context.terminated.is_set()
        if drains and self.connection.our_state is h11.DONE:
            self._drain_timer = asyncio.get_running_loop().call_later(left_s, self._expire)
        elif self.connection.our_state in (h11.DONE, h11.MUST_CLOSE):
            await self._linger()
        else:  # the response is not whole, which its client must see
            await self._end()
            await self.send(Closed())

    def _expire(self) -> None:
        self.task_group.spawn(self._linger)

    async def _linger(self) -> None:
        await self._end()
        await self.send(Lingering())

    async def _refuse(self, refusal: HttpRefusal) -> None:
        """Answer what is no valid request, if nothing was answered, and end the connection."""
        response = b""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = self._render(refusal)
        await self._end()
        await self._close_stream()
        if response:
            await self.send(RawData(data=response))
            await self.send(Lingering())
        else:
            await self.send(Closed())

    def _render(self, refusal: HttpRefusal) -> bytes:
        status, headers, body = self._refusals.render(refusal)
        send: Callable[[object], bytes] = self.connection.send
        response = send(h11.Response(status_code=status, headers=[*headers, (b"connection", b"close")]))
        if self.connection._request_method != b"HEAD":
            response += send(h11.Data(data=body))
        return response + send(h11.EndOfMessage())


async def _ignore(_: int) -> None:
    """HTTP/1.1 has no windows."""


def _refusal(error: h11.RemoteProtocolError, max_header_bytes: int) -> HttpRefusal:
    match error.error_status_hint:
        case 431:
            bound = f"{max_header_bytes} bytes or {HEADER_LINES} lines"
            return too_large(f"the headers, or a line of the body, are over the bound of {bound}")
        case 501:
            return unsupported(501, "the only supported Transfer-Encoding is chunked")
        case _:
            # What follows the colon in h11's texts are the client's own bytes.
            return malformed(str(error).partition(":")[0])
