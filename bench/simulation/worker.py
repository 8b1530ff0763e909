"""A virtual worker: it speaks the protocol of a remote worker with its gateways, which share it by the product's own
code."""

import functools
import itertools
from collections.abc import Callable, Container, Sequence

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.worker import IncarnationLost
from actors.supervision.worker_actor import WorkerRef
from bench.simulation.engine import MODEL, EngineModel, VirtualEngine
from bench.simulation.event_loop import SimulationLoop
from bench.simulation.link import GIVE_UP_S, VirtualLink, Wire
from bench.simulation.worker_end import WorkerEnd
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command
from protocol.commands import Cancel, Command, Drain, Stop, Submit, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import HEARTBEAT_S, Bye, Capabilities, Event, Failed, Heartbeat, Hello, Ready
from workers.process.gateways.shared_worker import SharedWorker

RETRY_S = 1.0
"""Between two tries of a worker to join."""

Join = Callable[[JoinRequest], bool]
"""Passes a request to join to a gateway; false if nobody listens there."""


class _EngineRef(WorkerRef):
    """Stands for the handle of the worker process, to what shares it out: passes commands to the engine."""

    def __init__(self, name: str, engine: VirtualEngine) -> None:
        self.name = name
        self._engine = engine

    def send_nowait(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Submit():
                    self._engine.submit(command)
                case Cancel(stream):
                    self._engine.cancel(stream)


class VirtualWorker:
    """One worker of a machine, over all its processes. Owns its ends of the links."""

    def __init__(
        self,
        loop: SimulationLoop,
        name: str,
        model: EngineModel,
        gateways: Sequence[Join],
        latency_s: Callable[[], float],
        poison: Container[int] = (),
    ) -> None:
        """A request with a key in `poison` ends its process."""
        self.name = name
        self.version = 1
        """The version of its program at the next start."""
        self.unreachable = False
        """The network is partitioned. Changed by its machine."""
        self.engine = VirtualEngine(loop, model, self._emit, self._crash, poison)
        self._loop = loop
        self._model = model
        self._gateways = gateways
        self._latency_s = latency_s
        self._lives = itertools.count(1)
        self._life = 0
        """The number of its process; 0 while there is none."""
        self._reset()

    def _reset(self) -> None:
        self.engine.restart()
        self._ready = False
        self._ends: dict[int, WorkerEnd] = {}
        self._shared = SharedWorker(
            _EngineRef(self.name, self.engine), [""] * len(self._gateways), self._loop.time, self._deliver
        )
        self._shared.describe(self._model.slots)

    # Its process.

    def start(self) -> None:
        """Start its process, which loads its model and asks to join, if there is none."""
        if self._life:
            return
        self._reset()
        self._life = next(self._lives)
        self._later(self._model.load_s, self._become_ready)
        for gateway in range(len(self._gateways)):
            self._connect(gateway)

    def kill(self) -> None:
        """End its process from outside. Its supervisor tells the gateways, and starts another process."""
        self._die(Origin.OUTSIDE)

    def _crash(self) -> None:
        self._die(Origin.WITHIN)

    def _die(self, origin: Origin) -> None:
        if self._life:
            reasons = self._shared.lost(IncarnationLost(self.name, self._life, "its process has ended", origin))
            for end in self._ends.values():
                end.put(Bye(reasons[end.gateway], "its process has ended"))
                end.flush()
                end.link.break_off("its process has ended")
            self._restart()

    def vanish(self) -> None:
        """Its machine is gone without a word: the gateways must notice by themselves."""
        self._cut_off()
        self._end()

    def set_latency(self, latency_s: float) -> None:
        """Change the latency of its network."""
        for end in self._ends.values():
            end.wire.latency_s = latency_s

    def partition(self) -> None:
        """Interrupt the network. Both ends give the connections up after `GIVE_UP_S`, unless it is healed before."""
        self.unreachable = True
        self._cut_off()

    def heal(self) -> None:
        """Make the network whole."""
        self.unreachable = False
        for end in list(self._ends.values()):  # what arrives may end them
            end.wire.heal()

    def lose_gateway(self, gateway: int) -> VirtualLink | None:
        """The process of a gateway is gone, and the kernel closes its connections. Returns its end of the link."""
        end = self._ends.get(gateway)
        if end is None:
            return None
        end.link.sever()
        self._lose(end)
        return end.link

    def _cut_off(self) -> None:
        for end in self._ends.values():
            end.wire.partitioned = True
            self._loop.after(GIVE_UP_S, functools.partial(self._give_up, end))

    def _give_up(self, end: WorkerEnd) -> None:
        if end.wire.partitioned:
            end.link.lose("no heartbeat of the connection")
            self._lose(end)

    def _end(self) -> None:
        self._reset()
        self._life = 0

    def _restart(self) -> None:
        self._end()
        self.start()

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        life = self._life
        self._loop.after(seconds, lambda: then() if life == self._life else None)

    def _become_ready(self) -> None:
        self._ready = True
        for end in self._ends.values():
            self._report_ready(end)
        self._flush()

    # Its links.

    def _is_current(self, end: WorkerEnd) -> bool:
        return self._ends.get(end.gateway) is end

    def _connect(self, gateway: int) -> None:
        if self.unreachable:
            self._later(RETRY_S, lambda: self._connect(gateway))
            return
        wire = Wire(self._loop, self._latency_s())
        link = VirtualLink(self._loop, wire, lambda frames: self._receive(end, frames), lambda: self._lose(end))
        end = self._ends[gateway] = WorkerEnd(self._loop, gateway, wire, link)
        model = self._model
        hello = Hello(
            *(PROTOCOL_VERSION, self.name, 0, self._life, MODEL, "scripted", "none", model.slots, model.context),
            config_digest=f"version {self.version}",
            model_digest="one",
            gateways=len(self._gateways),
        )
        request = JoinRequest(self.name, "192.0.2.1:1", hello, link)
        wire.send(lambda: self._ask_to_join(end, request), up=True)

    def _ask_to_join(self, end: WorkerEnd, request: JoinRequest) -> None:
        if not self._loop.meter.gateway(self._gateways[end.gateway], request):
            self._lose(end)

    def _lose(self, end: WorkerEnd) -> None:
        """A connection has ended: cancel what its gateway has here, and connect again."""
        if self._is_current(end):
            del self._ends[end.gateway]
            self._shared.leave(end.gateway)
            self._later(RETRY_S, lambda: self._connect(end.gateway))

    def _receive(self, end: WorkerEnd, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if not self._is_current(end):
                return
            match decode_command(frame):
                case Welcome(refusal=refusal):
                    self._welcome(end, refusal)
                case Submit(stream) if end.leaves:
                    end.put(Failed(stream, ErrorCode.DRAINING, "it leaves"))
                case Submit() as submit:
                    self._shared.submit(end.gateway, submit)
                case Cancel(stream):
                    self._shared.cancel(end.gateway, stream)
                case Drain(grace_ms):
                    end.leaves = True
                    self._later(grace_ms / 1000, lambda: self._leave_now(end))
                case Stop():
                    self._leave_now(end)
        self._flush()

    def _welcome(self, end: WorkerEnd, refusal: str) -> None:
        if refusal:
            self._lose(end)
            return
        end.joined = True
        self._shared.joined(end.gateway)
        if self._ready:
            self._report_ready(end)
        self._later(HEARTBEAT_S, lambda: self._beat(end))

    def _report_ready(self, end: WorkerEnd) -> None:
        end.put(Ready(Capabilities(chat=False, text=False), step_ms=int(self._model.step_s * 1000)))

    def _beat(self, end: WorkerEnd) -> None:
        if not self._is_current(end):
            return
        if end.due_s <= 0:
            end.put(self._shared.heartbeat(end.gateway, Heartbeat(self.engine.gauges())))
            end.flush()
        self._later(end.due_s, lambda: self._beat(end))

    def _leave_now(self, end: WorkerEnd) -> None:
        """Leave a gateway: what it has here fails, and continues elsewhere."""
        if self._is_current(end):
            self._shared.return_all(end.gateway, "it leaves")
            self._say_goodbye(end)

    def _say_goodbye(self, end: WorkerEnd) -> None:
        end.put(Bye(ByeReason.STOPPED, ""))
        end.flush()
        end.link.break_off("it left")
        if self._shared.alone:
            self._restart()
        else:
            self._lose(end)

    # Its engine.

    def _emit(self, events: Sequence[Event]) -> None:
        for event in events:
            self._shared.pass_on(event)
        self._flush()

    def _deliver(self, gateway: int, event: Event) -> None:
        if (end := self._ends.get(gateway)) is not None:
            end.put(event)

    def _flush(self) -> None:
        for end in list(self._ends.values()):
            end.flush()
            if end.leaves and self._is_current(end) and not self._shared.live(end.gateway):
                self._say_goodbye(end)
