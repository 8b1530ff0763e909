"""The worker's end of a link to one gateway."""

from bench.simulation.event_loop import SimulationLoop
from bench.simulation.link import VirtualLink, Wire
from protocol.codec import encode
from protocol.events import HEARTBEAT_S, Event


class WorkerEnd:
    """Lasts from the `Hello` of one try to join until the connection ends. Collects what its gateway gets in one
    message."""

    def __init__(self, loop: SimulationLoop, gateway: int, wire: Wire, link: VirtualLink) -> None:
        """`gateway` is its number among those of the worker."""
        self.gateway = gateway
        self.wire = wire
        self.link = link
        self.joined = False
        """The gateway has welcomed the worker."""
        self.leaves = False
        """The gateway has asked the worker to leave it when it has nothing of its sequences any more."""
        self._loop = loop
        self._batch: list[Event] = []
        self._sent_at = loop.time()

    @property
    def due_s(self) -> float:
        """Seconds until a heartbeat is due."""
        return self._sent_at + HEARTBEAT_S - self._loop.time()

    def put(self, event: Event) -> None:
        """Add an event to the next message."""
        if self.joined:
            self._batch.append(event)

    def flush(self) -> None:
        """Send the message, if there is anything."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._sent_at = self._loop.time()
            self.link.deliver([encode(event) for event in batch])
