"""Takes whole messages off a link's socket, and checks each against its bounds before it is delivered."""

from collections.abc import Callable

import zmq

from actors.transport.message import MAX_MESSAGE_BYTES, gap
from actors.transport.rate_limit import PeerBudget, PeerRate
from actors.transport.rejections import Rejection
from protocol.bounds import MAX_FRAMES_PER_MESSAGE

_RCVMORE = int(zmq.RCVMORE)
_NOBLOCK = int(zmq.NOBLOCK)


class MessageRejected(Exception):
    """Raised by `receive` for a message that is not to be delivered. `ends` is why nothing after it may be delivered
    either; it is empty when the next one may."""

    def __init__(self, kind: Rejection, ends: str = "") -> None:
        super().__init__(ends or kind.value)
        self.kind = kind
        self.ends = ends


class Receiver:
    """Receives what one peer sends, message by message."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        rate: PeerRate | None,
        clock: Callable[[], float],
        on_first: Callable[[zmq.Frame], None],
    ) -> None:
        """`on_first` gets the very first frame, from which libzmq knows the sender. Without a `rate` the incoming
        messages are not limited."""
        self._socket = socket
        self._budget = None if rate is None else PeerBudget(rate)
        self._clock = clock
        self._on_first = on_first
        self._due = 0  # the number of the message that comes next
        self.dropped = 0
        """Messages that broke a bound."""

    def expect(self, size: int) -> None:
        """Do not count so many bytes, which the peer was asked for, against its limit."""
        if self._budget is not None:
            self._budget.expect(size)

    def receive(self) -> list[bytes]:
        """The next message, which must be there. Raises `MessageRejected`."""
        socket = self._socket
        lost = gap(socket.recv(_NOBLOCK) if self._due else self._first(), self._due)
        self._due += 1
        frames: list[bytes] = []
        size = count = 0
        while socket.getsockopt(_RCVMORE):
            frame = socket.recv(_NOBLOCK)
            count += 1
            size += len(frame)
            if count <= MAX_FRAMES_PER_MESSAGE and size <= MAX_MESSAGE_BYTES:
                frames.append(frame)
            else:
                frames.clear()
        if lost:  # nothing that came after the gap may be taken for what was to come
            raise MessageRejected(Rejection.GAP, lost)
        if not frames:
            self.dropped += 1
            raise MessageRejected(Rejection.MESSAGE)
        if self._budget is not None and (excess := self._budget.spend(size, self._clock(), count)) is not None:
            # It is not even drained: that could take for ever.
            raise MessageRejected(Rejection.FLOOD, f"the peer sent {excess}")
        return frames

    def _first(self) -> bytes:
        frame = self._socket.recv(_NOBLOCK, copy=False)
        self._on_first(frame)
        return frame.bytes
