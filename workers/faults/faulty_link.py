"""The worker's end of a link that goes wrong by a plan, for tests and soaks. Without a plan it is not there at all."""

import asyncio
from collections import deque
from collections.abc import Sequence

from actors.transport.link import Link, LinkClosed, LinkFull, OnLost, OnMessage
from protocol.bounds import MAX_FRAME_BYTES
from workers.faults.plan import Fault, of_link

NO_FRAME = b"\xc1"
"""A byte that msgpack never uses."""
ROOM_S = 0.01
"""Until a late message is tried again that found no room."""


def connect(endpoint: str, on_message: OnMessage, on_lost: OnLost, faults: Sequence[Fault]) -> Link:
    """The worker's end: a plain link, unless something is to go wrong on it. Raises
    `actors.transport.endpoint.EndpointError`."""
    planned = of_link(faults)
    if not planned:
        return Link.connect(endpoint, on_message, on_lost=on_lost)
    link = FaultyLink.connect(endpoint, on_message, on_lost=on_lost)
    link.plan = planned
    return link


class FaultyLink(Link):
    """Loses, spoils and delays messages after they got their number, as a bad connection would."""

    plan: tuple[Fault, ...] = ()
    _late: deque[tuple[float, Sequence[bytes]]] | None = None
    """What has not been carried yet, and when it will be, in the loop's time; None when nothing ever was late."""

    def _transmit(self, parts: Sequence[bytes]) -> None:
        kinds = {fault.kind: fault for fault in self.plan if fault.hits(self.sent + 1, ())}
        if "drop_message" in kinds:
            return
        if "garble_message" in kinds:
            parts = [parts[0], NO_FRAME]
        if "oversize_message" in kinds:
            parts = [parts[0], bytes(MAX_FRAME_BYTES + 1)]
        slow = kinds.get("slow_link")
        if slow is not None or self._late:
            self._delay(parts, 0.0 if slow is None else slow.seconds)
        else:
            super()._transmit(parts)

    def _delay(self, parts: Sequence[bytes], seconds: float) -> None:
        """Send it later, but not before what is late already."""
        self._late = deque() if self._late is None else self._late
        loop = asyncio.get_running_loop()
        due = max(loop.time() + seconds, self._late[-1][0] if self._late else 0.0)
        self._late.append((due, parts))
        if len(self._late) == 1:
            loop.call_at(due, self._catch_up)

    def _catch_up(self) -> None:
        """Send what is due, and come back for the rest."""
        loop = asyncio.get_running_loop()
        while self._late and not self.closed:
            due, parts = self._late[0]
            if due > loop.time():
                loop.call_at(due, self._catch_up)
                return
            try:
                super()._transmit(parts)
            except LinkFull:
                loop.call_later(ROOM_S, self._catch_up)
                return
            except LinkClosed:
                return
            self._late.popleft()
