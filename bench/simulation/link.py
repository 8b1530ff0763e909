"""A link between a gateway and a virtual worker, in place of ZeroMQ: messages take virtual time, and the network can be
slow, partitioned or gone."""

from collections.abc import Callable, Sequence

from actors.transport.link import Link, LinkClosed, LinkFull, OnLost, OnMessage
from actors.transport.message import check_message
from actors.transport.zmq_socket import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, HIGH_WATER
from bench.simulation.event_loop import SimulationLoop

GIVE_UP_S = (HEARTBEAT_MS + HEARTBEAT_TIMEOUT_MS) / 1000
"""Time after which both ends of a connection know that the other one is unreachable: ZeroMQ's heartbeats."""


class Wire:
    """The network between a machine and a gateway. Messages of one direction keep their order."""

    def __init__(self, loop: SimulationLoop, latency_s: float) -> None:
        self.latency_s = latency_s
        """Changed by faults, for messages sent from then on."""
        self.partitioned = False
        """No message arrives. Those that are sent meanwhile arrive when the wire is whole again."""
        self._loop = loop
        self._held: list[Callable[[], None]] = []
        self._free_at = {True: 0.0, False: 0.0}

    @property
    def full(self) -> bool:
        """The sender has no more room for messages."""
        return len(self._held) >= HIGH_WATER

    def send(self, arrive: Callable[[], None], *, up: bool) -> None:
        """Let a message arrive, at the gateway (`up`) or at the worker, behind those before it."""
        self._free_at[up] = when = max(self._free_at[up], self._loop.time() + self.latency_s)
        self._loop.at(when, lambda: self._arrive(arrive))

    def heal(self) -> None:
        """Make it whole: what was sent meanwhile arrives."""
        self.partitioned = False
        held, self._held = self._held, []
        for arrive in held:
            arrive()

    def _arrive(self, arrive: Callable[[], None]) -> None:
        if self.partitioned:
            self._held.append(arrive)
        else:
            arrive()


class VirtualLink(Link):
    """The gateway's end of a link to a virtual worker."""

    def __init__(
        self,
        loop: SimulationLoop,
        wire: Wire,
        to_worker: Callable[[Sequence[bytes]], None],
        on_closed: Callable[[], None],
    ) -> None:
        """`to_worker` takes each message, and `on_closed` is called once after the gateway has closed its end, if the
        worker can still notice."""
        self._simulation = loop
        self._wire = wire
        self._to_worker = to_worker
        self._on_gateway_closed = on_closed
        self._receive: OnMessage = lambda frames: None
        self._report_loss: OnLost = lambda reason: None
        self._ended = False

    @property
    def closed(self) -> bool:
        return self._ended

    @property
    def dropped(self) -> int:
        return 0

    def hand_over(self, on_message: OnMessage, on_lost: OnLost) -> None:
        self._receive, self._report_loss = on_message, on_lost

    def send_nowait(self, frames: Sequence[bytes]) -> None:
        if self._ended:
            raise LinkClosed("the link is closed")
        check_message(frames)
        if self._wire.full:
            raise LinkFull(f"{HIGH_WATER} messages wait already")
        self._simulation.meter.model(self._wire.send, lambda: self._to_worker(frames), up=False)

    def drain_turn(self) -> bool:
        return False

    def drain_now(self) -> bool:
        return False

    def close(self, linger_s: float = 0.5) -> None:
        if not self._ended:
            self._ended = True
            self._simulation.meter.model(self._wire.send, self._on_gateway_closed, up=False)

    # The worker's side.

    def deliver(self, frames: list[bytes]) -> None:
        """Send a message of the worker to the gateway."""
        self._wire.send(lambda: self._take(frames), up=True)

    def lose(self, reason: str) -> None:
        """The connection has ended: tell the gateway, as its kernel or its heartbeats do."""
        if not self._ended:
            self._ended = True
            self._simulation.meter.gateway(self._report_loss, reason)

    def sever(self) -> None:
        """The gateway's process is gone: nothing goes in or out, and its code is not notified."""
        self._ended = True

    def report_severed(self) -> None:
        """Let the code of a gateway that is gone put its state in order."""
        self._simulation.meter.gateway(self._report_loss, "this gateway is gone")

    def break_off(self, reason: str) -> None:
        """The worker's process has ended: the gateway is notified behind the last message."""
        self._wire.send(lambda: self.lose(reason), up=True)

    def _take(self, frames: list[bytes]) -> None:
        if not self._ended:
            self._simulation.read_memory()
            self._simulation.meter.gateway(self._receive, frames)
