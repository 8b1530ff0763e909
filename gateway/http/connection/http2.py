"""HTTP/2 on one connection."""

import asyncio
from functools import partial
from typing import Any

import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.events import Body, EndBody, Request, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.utils import filter_pseudo_headers
from priority.priority import DeadlockError

from gateway.http.connection.frame_budget import FrameBudget, OverBudget
from gateway.http.connection.lingering import Lingering
from gateway.http.connection.loop_turn import LoopTurn
from gateway.http.connection.refusal import HttpRefusal, RefusalRenderer
from gateway.http.connection.request_head import http2_request
from gateway.http.connection.request_stream import RequestStream
from gateway.http.connection.send_buffer import SendBuffer
from gateway.settings import GatewaySettings

STREAM_WINDOW = 65535
"""Bytes of a body that a client may send before the app reads them (RFC 9113, 6.9.2)."""
LARGEST_FRAME = 65536
"""Bytes of the largest DATA frame that is sent, also to a client that takes larger ones."""
HEADER_TABLE_BYTES = 4096


class Http2(H2Protocol):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's protocol, with backpressure per stream and a budget of frames.

    In Hypercorn 0.17 and 0.18 a stream whose app does not read stops the connection; a client that reads nothing is
    sent to without a bound; extended CONNECT is announced; data for a stream that has ended, or a path that is not
    ASCII, raises in the connection; and frames are unlimited.
    """

    def __init__(self, *arguments: Any, settings: GatewaySettings, refusals: RefusalRenderer) -> None:
        super().__init__(*arguments)
        self.connection.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: self.config.h2_max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: self.config.h2_max_header_list_size,
            },
        )
        self._refusals = refusals
        self._stall_s = settings.client_stall_s
        self._receiving: set[int] = set()
        """Streams whose request has not ended."""
        self._loop = asyncio.get_running_loop()
        self._budget = FrameBudget(self.config.h2_max_header_list_size)
        self._stall_timer: asyncio.TimerHandle | None = None
        self._apps = 0
        """Apps that run, also for streams that were reset."""
        self._app_ended = asyncio.Event()

    async def initiate(self, headers: None = None, settings: None = None) -> None:
        """See `H2Protocol`."""
        self.connection.initiate_connection()
        # The windows of the streams are the bound: a stream that is not read must not close the others'.
        self.connection.increment_flow_control_window(STREAM_WINDOW * (self.config.h2_max_concurrent_streams - 1))
        await self._flush()
        self.task_group.spawn(self.send_task)
        self._stall_timer = self._loop.call_later(self._stall_s, self._check_stalls)

    async def handle(self, event: Event) -> None:
        """See `H2Protocol`."""
        if isinstance(event, Closed):
            await self._close()
        elif not self.closed:
            turn = LoopTurn()
            try:
                for piece in self._budget.pieces(event.data, self._loop.time()):
                    await self._handle_events(self._receive(piece))
                    if self.closed:
                        return
                    await turn.pause()
            except OverBudget:
                await self._terminate(ErrorCodes.ENHANCE_YOUR_CALM)
            except h2.exceptions.ProtocolError:
                await self._terminate(None)

    def _receive(self, piece: bytes) -> list[h2.events.Event]:
        try:
            events: list[h2.events.Event] = self.connection.receive_data(piece)
        except (UnicodeDecodeError, ValueError) as error:
            raise h2.exceptions.ProtocolError from error  # h2 4.4 decodes some fields without a check
        if self.connection.encoder.header_table_size > HEADER_TABLE_BYTES:
            # The client may allow a table of 4 GiB. It would be filled with request ids, and searched for each header.
            self.connection.encoder.header_table_size = HEADER_TABLE_BYTES
        return events

    def stop(self) -> None:
        """Stop looking for stalls."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    async def _close(self) -> None:
        self.stop()
        self._app_ended.set()
        await super().handle(Closed())
        for stream_id in list(self.stream_buffers):
            await self._forget(stream_id)

    async def _terminate(self, code: ErrorCodes | None) -> None:
        """End the connection with GOAWAY; with None, h2 has made the frame."""
        if code is not None:
            self.connection.close_connection(code)
        await self._flush()
        await self._close()
        await self.send(Lingering())

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            match event:
                case h2.events.RequestReceived():
                    await self._receive_request(event)
                case h2.events.DataReceived():
                    await self._receive_body(event)
                case h2.events.StreamEnded():
                    self._receiving.discard(event.stream_id)
                    if stream := self.streams.get(event.stream_id):
                        await stream.handle(EndBody(stream_id=event.stream_id))
                case h2.events.StreamReset():
                    await self._receive_reset(event)
                case h2.events.WindowUpdated():
                    await self._window_updated(event.stream_id)
                case h2.events.RemoteSettingsChanged():
                    if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
                        await self._window_updated(None)
                case h2.events.ConnectionTerminated():
                    await self.send(Closed())
        await self._flush()

    async def _wait_for_room(self) -> None:
        """Wait until fewer apps run than streams may be open. A client that resets its streams would start any number
        of them otherwise (CVE-2023-44487): those of its last streams take some time to notice."""
        while self._apps >= self.config.h2_max_concurrent_streams and not self.closed:
            self._app_ended.clear()
            await self._app_ended.wait()

    def _note_end(self) -> None:
        self._apps -= 1
        self._app_ended.set()

    async def _receive_request(self, event: h2.events.RequestReceived) -> None:
        await self._wait_for_room()
        if self.closed:
            return
        stream_id = event.stream_id
        self._receiving.add(stream_id)
        if self.context.terminated.is_set():
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        try:
            method, path = http2_request(event.headers)
        except HttpRefusal as refusal:
            self._refuse(stream_id, refusal)
            return
        self.streams[stream_id] = stream = RequestStream(
            *(self.app, self.config, self.context, self.task_group),
            *(self.ssl, self.client, self.server, self.stream_send, stream_id),
            most=None,
            on_read=partial(self._acknowledge, stream_id),
            on_end=self._note_end,
        )
        self._apps += 1
        self.stream_buffers[stream_id] = SendBuffer(self.context.event_class)
        self.priority.insert_stream(stream_id)
        self.priority.block(stream_id)
        await stream.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(event.headers),
                http_version="2",
                method=method.decode("ascii").upper(),
                raw_path=path,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.send(Updated(idle=False))

    def _refuse(self, stream_id: int, refusal: HttpRefusal) -> None:
        status, headers, body = self._refusals.render(refusal)
        room = self.connection.local_flow_control_window(stream_id) >= len(body)
        try:
            self.connection.send_headers(stream_id, [(b":status", b"%d" % status), *headers], end_stream=not room)
            if room:
                self.connection.send_data(stream_id, body, end_stream=True)
        except h2.exceptions.ProtocolError:
            return  # the client has reset the stream in the same read
        self._stop_request(stream_id)

    async def _receive_body(self, event: h2.events.DataReceived) -> None:
        """A part of a body. The stream's window opens again when the app has read it."""
        stream = self.streams.get(event.stream_id)
        kept = len(event.data) if stream is not None else 0
        await self._acknowledge(event.stream_id, event.flow_controlled_length - kept)
        if stream is not None and kept:
            await stream.handle(Body(stream_id=event.stream_id, data=event.data))

    async def _acknowledge(self, stream_id: int, size: int) -> None:
        if size and not self.closed:
            try:
                self.connection.acknowledge_received_data(size, stream_id)
            except h2.exceptions.ProtocolError:
                return  # the connection ends
            await self.has_data.set()

    async def _receive_reset(self, event: h2.events.StreamReset) -> None:
        """The client has reset a stream, or h2 has, for an error of the client."""
        if not event.remote_reset:
            self._budget.count_reset(self._loop.time())
        self._receiving.discard(event.stream_id)
        await self._close_stream(event.stream_id)
        await self._forget(event.stream_id)
        await self.send(Updated(idle=not self.streams))

    async def stream_send(self, event: StreamEvent) -> None:
        """See `H2Protocol`."""
        if isinstance(event, StreamClosed):
            buffer = self.stream_buffers.get(event.stream_id)
            if buffer is not None and not buffer.ended:
                # The app has given up: its client must not take what it got for the whole response.
                self._reset(event.stream_id, ErrorCodes.CANCEL)
                await self._forget(event.stream_id)
                await self._flush()
        await super().stream_send(event)

    async def send_task(self) -> None:
        """See `H2Protocol`. Sends window updates too, which `_acknowledge` has made."""
        turn = LoopTurn()
        while not self.closed:
            try:
                stream_id = next(self.priority)
            except DeadlockError:
                await self._flush()
                await self.has_data.wait()
                await self.has_data.clear()
            else:
                await self._send_data(stream_id)
            await turn.pause()

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers[stream_id]
        try:
            window = self.connection.local_flow_control_window(stream_id)
            size = min(window, self.connection.max_outbound_frame_size, LARGEST_FRAME)
            if data := await buffer.pop(max(0, size)):
                self.connection.send_data(stream_id, data)
                self._budget.sent(len(data))
                await self._flush()
            else:
                self.priority.block(stream_id)
            if buffer.complete and stream_id in self.stream_buffers:
                self.connection.end_stream(stream_id)
                self._stop_request(stream_id)
                await self._forget(stream_id)
                await self._flush()
        except h2.exceptions.ProtocolError:
            await self._forget(stream_id)  # the stream or the connection has closed

    def _stop_request(self, stream_id: int) -> None:
        """Its response has ended: ask for no more of its body (RFC 9113, 8.1)."""
        if stream_id in self._receiving:
            self._reset(stream_id, ErrorCodes.NO_ERROR)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        self._receiving.discard(stream_id)
        try:
            self.connection.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            return  # it has closed

    async def _forget(self, stream_id: int) -> None:
        """Drop what has not been sent of a stream, and release its app."""
        buffer = self.stream_buffers.pop(stream_id, None)
        if buffer is not None:
            self.priority.remove_stream(stream_id)
            await buffer.close()

    def _check_stalls(self) -> None:
        """Reset the streams of which the client takes nothing."""
        self._stall_timer = self._loop.call_later(self._stall_s, self._check_stalls)
        if stalled := [stream_id for stream_id, buffer in self.stream_buffers.items() if buffer.stalls()]:
            self.task_group.spawn(self._drop, stalled)

    async def _drop(self, stalled: list[int]) -> None:
        for stream_id in stalled:
            self._reset(stream_id, ErrorCodes.CANCEL)
            await self._close_stream(stream_id)
            await self._forget(stream_id)
        await self._flush()
        await self.send(Updated(idle=not self.streams))
