"""A link between two processes: bounded, message by message, one peer at the other end.

The event loop must be asyncio's (for its `add_reader`): a link reads its socket in a loop callback, without a task or a
queue of its own. libzmq's file descriptor is edge-triggered: it becomes readable when the state *changes*, and any call
on the socket may use that change up. Hence the two rules here: a callback drains until nothing is left or comes back
by itself, and every send is followed by a look at the events (ZeroMQ manual, zmq_getsockopt, ZMQ_FD).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

import zmq

from actors.transport.curve_authentication import key_of
from actors.transport.message import MessageRefused, check_message, number_frame
from actors.transport.monitor import Change
from actors.transport.rate_limit import PeerRate
from actors.transport.receiver import MessageRejected, Receiver
from actors.transport.rejections import Rejection
from actors.transport.zmq_socket import HIGH_WATER, CurveKeys, LinkSocket

__all__ = ["HIGH_WATER", "KEY_REFUSED", "CurveKeys", "Link", "LinkClosed", "LinkFull", "MessageRefused"]

DRAIN_BATCH = 64
"""Messages handled in one turn of the event loop before others get theirs."""
DRAIN_FRAMES = 128
"""Frames after which that turn ends, also within a message: the end of a sequence takes 50 us."""
DRAIN_BYTES = 512 * 1024
"""Bytes of messages after which that turn ends: steps of many sequences with log-probabilities take 10 ms a
megabyte."""
DRAIN_TURNS = 4
"""Such turns in which messages are handled before others get theirs, when the peer is about to be judged by them."""
_EVENTS = int(zmq.EVENTS)
_NOBLOCK = int(zmq.NOBLOCK)
_SNDMORE = int(zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)

OnMessage = Callable[[list[bytes]], None]
OnLost = Callable[[str], None]
OnRejected = Callable[[Rejection], None]

_ENDED = "the peer's connection ended"
KEY_REFUSED = "the other end refused the key"
"""The reason of a loss, at the connecting side."""
_NO_HANDSHAKE = "the handshake failed: the other end has another key than the one expected, or is no Baton"


class LinkFull(Exception):
    """Raised by a send when the bound of waiting messages is reached, or no peer is there yet. Nothing was sent."""


class LinkClosed(Exception):
    """Raised by a send when this end is closed or the peer is gone. Nothing more will be sent or delivered."""


class Link:
    """One end of a link. Used on the thread of the event loop that it was made on.

    `on_message` is called synchronously on that loop with the frames of a message, in order: with all of them, or, if
    there are more than DRAIN_FRAMES, with so many in each of several turns of the loop. What
    breaks a bound is counted in `dropped` and not delivered; a frame over MAX_FRAME_BYTES ends the connection inside
    libzmq before it takes memory, and bytes that are not ZeroMQ's never make one (`rejected`). Nothing more is taken
    from a peer that breaks `rate`. `on_lost` is called once, after the last message, when the connection is gone or was
    rejected. It is never made again, since what it lost would stay unknown. Messages carry a number: when one is
    missing, the link counts as lost at the next. Neither callback is called inside a send.
    """

    def __init__(
        self,
        endpoint: str,
        bind: bool,
        on_message: OnMessage,
        on_lost: OnLost | None,
        keys: CurveKeys | None,
        rate: PeerRate | None,
        on_rejected: OnRejected | None,
    ):
        self._loop = asyncio.get_running_loop()
        self._bound = bind
        self._on_message = on_message
        self._on_lost: OnLost = on_lost or (lambda reason: None)
        self._on_rejected: OnRejected = on_rejected or (lambda why: None)
        self._owned = LinkSocket(endpoint, bind, keys)
        self._socket, self._monitor = self._owned.socket, self._owned.monitor
        self._receiver = Receiver(self._socket, rate, self._loop.time, self._identify)
        self._writable: asyncio.Future[None] | None = None
        self._again: asyncio.Handle | None = None
        self._frames: list[bytes] = []  # of a message that is being delivered, and not delivered yet
        self._draining = False  # inside _drain, which looks at the events by itself after each message
        self._torn = False  # nothing more can be sent; the loss is reported in a turn of the loop of its own
        self._closed = False
        self._lost = False
        self.cut_off = False
        """Nothing more is taken from the peer, because of what it sent: it may well be there."""
        self.rejected = 0
        """Connections that failed their handshake or came second; they do not disturb the first one."""
        self.sent = 0
        """Messages handed to the socket."""
        self.received = 0
        """Messages of which `on_message` got frames."""
        self.peer_pid: int | None = None
        """The process that connected to this end, by the kernel's word; known before its first message is delivered.
        None over TCP, and where the system does not report it (Linux does); 0 for one that was gone too soon."""
        self.peer_key = ""
        """The CURVE public key (Z85) of the peer that connected to this end; known before its first message is
        delivered, empty on a link without keys."""
        self._loop.add_reader(self._owned.descriptor, self._on_readable)
        self._loop.add_reader(self._monitor.descriptor, self._on_monitor)
        # libzmq signals the descriptor again only after a look at the events found nothing: so look once.
        self._come_back()
        self._loop.call_soon(self._on_monitor)

    @classmethod
    def bind(
        cls,
        endpoint: str,
        on_message: OnMessage,
        *,
        on_lost: OnLost | None = None,
        keys: CurveKeys | None = None,
        rate: PeerRate | None = None,
        on_rejected: OnRejected | None = None,
    ) -> "Link":
        """The side that was there first. `tcp://127.0.0.1:*` picks a port; see `address`. `on_rejected` is called
        for each connection and message that is rejected; it must not raise.

        Raises `EndpointError` when the address is taken, malformed, or plain TCP on an open interface, and when the
        system gives no socket.
        """
        return cls(endpoint, True, on_message, on_lost, keys, rate, on_rejected)

    @classmethod
    def connect(
        cls, endpoint: str, on_message: OnMessage, *, on_lost: OnLost | None = None, keys: CurveKeys | None = None
    ) -> Self:
        """The side that comes; the other must be there, or `on_lost` is called. Raises `EndpointError`."""
        return cls(endpoint, False, on_message, on_lost, keys, None, None)

    @property
    def address(self) -> str:
        """The address that was bound or connected last, with its port."""
        return self._owned.address

    @property
    def closed(self) -> bool:
        """Nothing can be sent any more."""
        return self._closed or self._lost or self._torn

    @property
    def dropped(self) -> int:
        """Messages refused because they broke a bound."""
        return self._receiver.dropped

    def hand_over(self, on_message: OnMessage, on_lost: OnLost) -> None:
        """Give this end other callbacks. A loss that was reported already is reported again, in a turn of the loop."""
        self._on_message, self._on_lost = on_message, on_lost
        if self._lost:
            self._loop.call_soon(on_lost, _ENDED)

    def expect(self, size: int) -> None:
        """Do not count so many bytes, which the peer is asked for, against its rate."""
        self._receiver.expect(size)

    def send_nowait(self, frames: Sequence[bytes]) -> None:
        """Send one message of `frames`. Raises `LinkFull`, `LinkClosed` or `MessageRefused`; then nothing was sent."""
        if self.closed:
            raise LinkClosed("the link is closed")
        check_message(frames)
        self._transmit([number_frame(self.sent), *frames])
        self.sent += 1
        if not self._draining and self._again is None and self._events() & _POLLIN:
            self._come_back()

    async def send(self, frames: Sequence[bytes]) -> None:
        """Like `send_nowait`, but waits for room instead of raising `LinkFull`. One task at a time may wait."""
        while True:
            try:
                return self.send_nowait(frames)
            except LinkFull:
                if self._writable is not None:
                    raise
                self._writable = self._loop.create_future()
                self._come_back()
                try:
                    await self._writable
                finally:
                    self._writable = None

    def _transmit(self, parts: Sequence[bytes]) -> None:
        """Give a message and its number to the socket. Raises as `send_nowait` does."""
        last = len(parts) - 1
        send = self._socket.send
        for index, part in enumerate(parts):
            try:
                send(part, _NOBLOCK if index == last else _NOBLOCK | _SNDMORE)
            except zmq.Again:
                if index:  # the peer went away inside the message; what is left of it must not lead the next one
                    self._tear("the peer left while a message was being sent")
                    raise LinkClosed("the peer is gone") from None
                raise LinkFull(f"{HIGH_WATER} messages wait already, or no peer is there") from None

    def drain_turn(self) -> bool:
        """Deliver some of what has arrived; true when more may be waiting, which is delivered in later turns."""
        if self._closed or self._lost:
            return False
        self._on_monitor()
        more = not (self._closed or self._lost) and self._drain()
        if more:
            self._come_back()
        return more

    def drain_now(self) -> bool:
        """Deliver what has arrived, at once: for a caller that is about to judge the peer by what it has sent. True
        when that is too much for one turn of the event loop: the rest is delivered in later ones."""
        self._on_monitor()
        more = self._drain_turns()
        if more:
            self._come_back()
        return more

    def close(self, linger_s: float = 0.5) -> None:
        """Close this end, giving unsent messages up to `linger_s` seconds (blocking). No callback is called after."""
        if self._closed:
            return
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        self._stop_reading()
        self._owned.close(0 if self._lost else int(linger_s * 1000))

    def _events(self) -> int:
        return self._socket.getsockopt(_EVENTS)  # type: ignore[return-value]  # EVENTS is an int

    def _come_back(self) -> None:
        if self._again is None and not self._closed:
            self._again = self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        if not self._monitor.connected:
            self._on_monitor()  # who connected is noted before its first message
        if self._closed or self._lost:
            return
        if self._again is not None:
            self._again.cancel()
            self._again = None
        more = True  # stays so when on_message raises: the edge is used up, so this callback must come back by itself
        try:
            more = self._drain()
        finally:
            if more:
                self._come_back()

    def _drain(self) -> bool:
        """Deliver messages, up to the bounds of a turn; true when more may be waiting."""
        self._draining = True
        count = size = 0
        try:
            for _ in range(DRAIN_BATCH):
                state = self._events()
                if self._writable is not None and state & _POLLOUT and not self._writable.done():
                    self._writable.set_result(None)
                if not self._frames and not state & _POLLIN:
                    return False
                try:
                    frames = self._portion()
                except MessageRejected as rejected:
                    self._on_rejected(rejected.kind)
                    if rejected.ends:
                        self.cut_off = True
                        self._end(rejected.ends)
                else:
                    count += len(frames)
                    size += sum(map(len, frames))
                    self._on_message(frames)
                if self._closed or self._lost:
                    return False
                if size >= DRAIN_BYTES or count >= DRAIN_FRAMES:
                    break
            return True
        finally:
            self._draining = False

    def _portion(self) -> list[bytes]:
        """The frames that are delivered next: what is left of a message, or of the next one, which must be there.
        Raises `MessageRejected`."""
        if not self._frames:
            self._frames = self._receiver.receive()
            self.received += 1
        frames, self._frames = self._frames, []
        if len(frames) > DRAIN_FRAMES:
            frames, self._frames = frames[:DRAIN_FRAMES], frames[DRAIN_FRAMES:]
        return frames

    def _drain_turns(self) -> bool:
        """Deliver messages, up to the bounds of several turns; true when more may be waiting."""
        return not (self._closed or self._lost) and all(self._drain() for _ in range(DRAIN_TURNS))

    def _identify(self, first: zmq.Frame) -> None:
        """The first message: it is known from now on whose connection this is."""
        here, self.peer_key = self._monitor.identify(first), key_of(first)
        if self.peer_pid is None:
            self.peer_pid = self._monitor.peer_pid()
        if not here:  # it ended before, and its end could not be distinguished from another one's
            self._loop.call_soon(self._lose, _ENDED)

    def _on_monitor(self) -> None:
        """Follow the one connection that counts. A second peer is rejected by the PAIR socket itself."""
        while not (self._closed or self._lost) and (change := self._monitor.next()) is not None:
            match change:
                case Change.READY:
                    if self.peer_pid is None:
                        self.peer_pid = self._monitor.peer_pid()
                    self._come_back()  # a send that waits may go on
                case Change.LOST:
                    self._lose(_ENDED)
                case Change.NOBODY:
                    self._lose("nobody listens at the address")
                case Change.REJECTED | Change.KEY_REJECTED:
                    self.rejected += 1
                    key = change is Change.KEY_REJECTED
                    self._on_rejected(Rejection.KEY if key else Rejection.HANDSHAKE)
                    if not self._bound:
                        self._lose(KEY_REFUSED if key else _NO_HANDSHAKE)

    def _tear(self, reason: str) -> None:
        """The connection is beyond use. Reported later: no callback is called inside a send."""
        if not self._torn:
            self._torn = True
            self._loop.call_soon(self._lose, reason)

    def _lose(self, reason: str) -> None:
        if self._closed or self._lost:
            return
        self._torn = True
        more = False
        try:
            more = self._drain_turns()  # libzmq reports the loss after it queued what had come before
        finally:
            if more:
                self._loop.call_soon(self._lose, reason)
            else:
                self._end(reason)

    def _end(self, reason: str) -> None:
        """Take nothing more, and report it: once."""
        if self._closed or self._lost:
            return
        self._lost = True
        self._stop_reading()
        self._on_lost(reason)

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._owned.descriptor)
        self._loop.remove_reader(self._monitor.descriptor)
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(LinkClosed("the link is closed"))
