"""One of the gateways of a remote worker: the links to it, one at a time, and the pauses between them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog
from msgspec import Struct

from actors.supervision.messages import RestartWorker
from actors.supervision.restart_policy import MAX_REMEMBERED, RestartPolicy
from actors.supervision.worker import WorkerState, WorkerStatus, WorkerUnavailable
from actors.transport.endpoint import EndpointError
from actors.transport.link import KEY_REFUSED
from protocol.events import HEARTBEAT_S, Event
from workers.process.gateway_link import GatewayLink
from workers.process.gateways.address import GatewayAddress
from workers.process.gateways.shared_worker import SharedWorker

WELCOME_S = 15.0
RETRY = RestartPolicy(max_failures=None, window_s=60.0, first_delay_s=0.25, max_delay_s=10.0)
"""Pauses between attempts to reach a gateway."""
_JOINED = frozenset({WorkerState.LOADING, WorkerState.READY})


class GatewayFrames(Struct, frozen=True):
    """A message of a gateway."""

    gateway: int
    link: GatewayLink
    frames: list[bytes]


class GatewayLost(Struct, frozen=True):
    """The link to a gateway has ended."""

    gateway: int
    link: GatewayLink
    reason: str


class LinkDue(Struct, frozen=True):
    """The time of a heartbeat, or the deadline of the `Welcome`, has come."""

    gateway: int
    link: GatewayLink


class JoinDue(Struct, frozen=True):
    """The time to connect to a gateway again has come."""

    gateway: int


GatewayMessage = GatewayFrames | GatewayLost | LinkDue | JoinDue


class GatewayConnection:
    """Synchronous. `post` is called from callbacks of the event loop with messages, which `handle` takes; `settle`
    follows each of them, and all that changes the worker."""

    def __init__(
        self,
        number: int,
        address: GatewayAddress,
        shared: SharedWorker,
        post: Callable[[GatewayMessage], None],
        start_soon: Callable[..., object],
        give_up: Callable[[str], None],
        out_of_time: Callable[[str | None], str],
    ) -> None:
        """`start_soon` runs an asynchronous function in a task, and `give_up` ends the worker for a reason.
        `out_of_time` gets why a link has ended, and returns why it was the last try; empty if there is a next one."""
        self.link: GatewayLink | None = None
        self._number = number
        self._address = address
        self._shared = shared
        self._post = post
        self._start_soon: Callable[[Callable[..., Awaitable[None]], object, str], object] = start_soon
        self._give_up = give_up
        self._out_of_time = out_of_time
        self._loop = asyncio.get_running_loop()
        self._keys = address.keys
        name, key = shared.worker.name, self._keys.own_text
        self._log = structlog.get_logger("joining").bind(worker=name, gateway=address.address, key=key)
        self._failures: deque[float] = deque(maxlen=MAX_REMEMBERED)
        self._waits = False  # before it tries again
        self._made_at = 0.0

    @property
    def joined(self) -> bool:
        """The gateway has the worker."""
        return self.link is not None and self.link.joined

    def handle(self, message: GatewayMessage) -> None:
        """Take a message that was posted."""
        match message:
            case JoinDue():
                self._waits = False
            case _ if message.link is not self.link:
                pass  # of a link that is no more
            case GatewayFrames(link=link, frames=frames):
                before = link.joined
                link.receive(frames)
                if link.joined and not before:
                    self._keys.welcomed()
            case GatewayLost(link=link, reason=reason):
                link.end(reason)
            case LinkDue(link=link):
                self._attend(link)

    def settle(self) -> None:
        """Follow a link that has ended, and connect if there is nothing against it."""
        if self.link is not None and self.link.ended is not None:
            self._over(self.link)
        self._join()

    def deliver(self, event: Event) -> None:
        """Send the gateway what is about it, if it is there."""
        if self.link is not None:
            self.link.deliver(event)

    def _join(self) -> None:
        """Connect, if there is a worker that has nothing of an earlier link's any more."""
        status = self._shared.worker.status
        if self.link is not None or self._waits or self._shared.live(self._number) or not may_join(status):
            return
        assert status.hello is not None, "checked above"
        try:
            link = GatewayLink(
                self._shared,
                self._number,
                self._address,
                self._loop.time,
                lambda frames: self._post(GatewayFrames(self._number, link, frames)),
                lambda reason: self._post(GatewayLost(self._number, link, reason)),
            )
        except EndpointError as error:
            self._try_later(str(error))
            return
        self.link, self._made_at = link, self._loop.time()
        self._start_soon(link.send_hello, status.hello, self._keys.registers)
        self._later(HEARTBEAT_S, LinkDue(self._number, link))

    def _attend(self, link: GatewayLink) -> None:
        if not link.joined and self._loop.time() - self._made_at >= WELCOME_S:
            link.end(f"no answer within {WELCOME_S:g} s")
        else:
            link.attend()
            self._later(HEARTBEAT_S, LinkDue(self._number, link))

    def _over(self, link: GatewayLink) -> None:
        """Cancel the sequences of a link that has ended, which the gateway replays, and connect again later."""
        self.link = None
        try:
            self._shared.leave(self._number)
        except WorkerUnavailable as error:
            self._log.warning("worker_restarts", reason=f"a cancel cannot be sent to it: {error}")
            self._shared.worker.ref.tell(RestartWorker(0.0), urgent=True)
        if link.joined:
            self._failures.clear()
        if why := self._keys.ended(refused=link.ended == KEY_REFUSED):
            self.give_up(why)
        else:
            self._try_later(link.ended)

    def give_up(self, why: str) -> None:
        """End the worker, and do not connect again."""
        self._log.error("gives_up", reason=why)
        self._waits = True
        self._give_up(why)

    def _try_later(self, reason: str | None) -> None:
        if why := self._out_of_time(reason):
            self.give_up(why)
            return
        now = self._loop.time()
        self._failures.append(now)
        delay_s = RETRY.delay_s(self._failures, now)
        self._log.warning("not_joined", reason=reason, retry_s=delay_s)
        self._waits = True
        self._later(delay_s, JoinDue(self._number))

    def _later(self, delay_s: float, message: GatewayMessage) -> None:
        self._loop.call_later(delay_s, self._post, message)


def may_join(status: WorkerStatus) -> bool:
    """The worker has said what it is, and can be offered to a gateway."""
    return status.hello is not None and status.state in _JOINED
