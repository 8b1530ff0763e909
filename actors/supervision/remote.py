"""A worker of another machine, which joins over the network: the same without the process.

Its restarts are its own machine's business; when it may join again is decided here, by the same policy that delays the
restart of a process.
"""

import asyncio
import functools

import structlog

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.life import Terms
from actors.supervision.messages import Ended, Frames, LinkLost, Started
from actors.supervision.peer import Report
from actors.transport.link import Link
from protocol.codec import encode
from protocol.events import SILENT_S


class RemotePeer:
    """Implements `Peer` by the link of a join request. It cannot be killed, only left: its own supervisor, on its
    machine, ends what hangs."""

    def __init__(self, name: str, terms: Terms) -> None:
        self._log = structlog.get_logger("worker").bind(worker=name)
        self._deadlines = terms.deadlines
        self._ended = lambda: None

    def start(self, number: int, request: JoinRequest | None, report: Report) -> tuple[Link, Started]:
        """Take over the link of the request, and its `Hello`."""
        assert request is not None, "it starts by joining"
        self._ended, link = functools.partial(report, Ended(number)), request.link
        link.hand_over(
            lambda frames: report(Frames(number, frames)),
            lambda reason: report(LinkLost(number, reason, Origin.OUTSIDE, final=True)),
        )
        report(Frames(number, [encode(request.hello)]))
        self._log.info("worker_joined", incarnation=number, address=request.address, says=request.hello.worker)
        return link, Started(request.hello.pid, request.address)

    def observe(self, silent_s: float, hang_s: float) -> tuple[bool, Origin]:
        """Its machine sends heartbeats for it, hung or not: if nothing comes, that machine or the network is gone."""
        silence = min(SILENT_S, self._deadlines.heartbeat, self._deadlines.idle, hang_s / 2)
        return False, Origin.OUTSIDE if silent_s >= silence else Origin.WITHIN

    def end(self, ask_s: float) -> None:
        """There is nothing to end but the link, which its owner closes."""
        asyncio.get_running_loop().call_soon(self._ended)
