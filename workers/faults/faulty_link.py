"""Wraps the worker's end of a link with planned faults, for tests and soaks. Without such faults there is no
wrapper."""

import asyncio
from collections import deque
from collections.abc import Sequence

from actors.transport.link import Link, LinkClosed, LinkFull, OnLost, OnMessage
from protocol.bounds import MAX_FRAME_BYTES
from workers.faults.plan import Fault, of_link

INVALID_FRAME = b"\xc1"
"""A byte that is never valid msgpack."""
RETRY_S = 0.01
"""Delay before a late message is sent again after the link had no room."""


def connect(endpoint: str, on_message: OnMessage, on_lost: OnLost, faults: Sequence[Fault]) -> Link:
    """Connect the worker's end of the link, with the planned faults.

    Raises `actors.transport.endpoint.EndpointError`.
    """
    planned = of_link(faults)
    if not planned:
        return Link.connect(endpoint, on_message, on_lost=on_lost)
    link = FaultyLink.connect(endpoint, on_message, on_lost=on_lost)
    link.plan = planned
    return link


class FaultyLink(Link):
    """Loses, garbles and delays messages after they are numbered, like a bad connection."""

    plan: tuple[Fault, ...] = ()
    _late: deque[tuple[float, Sequence[bytes]]] | None = None
    """Delayed messages and when to send them, in the loop's time; None before the first one."""

    def _transmit(self, parts: Sequence[bytes]) -> None:
        kinds = {fault.kind: fault for fault in self.plan if fault.hits(self.sent + 1, ())}
        if "drop_message" in kinds:
            return
        if "garble_message" in kinds:
            parts = [parts[0], INVALID_FRAME]
        if "oversize_message" in kinds:
            parts = [parts[0], bytes(MAX_FRAME_BYTES + 1)]
        slow = kinds.get("slow_link")
        if slow is not None or self._late:
            self._delay(parts, 0.0 if slow is None else slow.seconds)
        else:
            super()._transmit(parts)

    def _delay(self, parts: Sequence[bytes], seconds: float) -> None:
        """Send a message later, and not before earlier delayed ones."""
        self._late = deque() if self._late is None else self._late
        loop = asyncio.get_running_loop()
        due = max(loop.time() + seconds, self._late[-1][0] if self._late else 0.0)
        self._late.append((due, parts))
        if len(self._late) == 1:
            loop.call_at(due, self._catch_up)

    def _catch_up(self) -> None:
        """Send the messages that are due, and schedule the rest."""
        loop = asyncio.get_running_loop()
        while self._late and not self.closed:
            due, parts = self._late[0]
            if due > loop.time():
                loop.call_at(due, self._catch_up)
                return
            try:
                super()._transmit(parts)
            except LinkFull:
                loop.call_later(RETRY_S, self._catch_up)
                return
            except LinkClosed:
                return
            self._late.popleft()
