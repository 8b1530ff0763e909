"""A worker of another machine, which joins over the network. That machine restarts it; the restart policy here delays
its next join."""

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
    """Implements `Peer` by the link of a join request. The supervisor on its own machine ends what hangs."""

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
        """See `Peer`. Its machine sends heartbeats also while it hangs: without them, machine or network is gone."""
        silence = min(SILENT_S, self._deadlines.heartbeat, self._deadlines.idle, hang_s / 2)
        return False, Origin.OUTSIDE if silent_s >= silence else Origin.WITHIN

    def end(self, ask_s: float) -> None:
        """Report the end: the owner of the link closes it."""
        asyncio.get_running_loop().call_soon(self._ended)

    def kill(self) -> bool:
        """See `Peer`."""
        return False
