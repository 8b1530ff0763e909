"""A virtual worker: it speaks the protocol of a remote worker, and its engine is a model of time."""

import itertools
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from actors.join.request import JoinRequest
from bench.simulation.event_loop import SimulationLoop
from bench.simulation.link import GIVE_UP_S, VirtualLink, Wire
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Drain, Stop, Submit, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import (
    HEARTBEAT_S,
    Bye,
    Capabilities,
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Ready,
    StartedStream,
    Step,
    Usage,
)
from protocol.request import TokensInput

MODEL = "simulated"
TEXT = " word"
"""The text of each token."""
RETRY_S = 1.0
"""Between two tries of a worker to join."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The pace of a virtual worker, in seconds."""

    slots: int = 8
    step_s: float = 0.04
    """An engine step, and as much again for what follows."""
    row_s: float = 0.001
    """Each running sequence in a step."""
    prefill_s: float = 0.0001
    """Each token of a prompt, and each resumed one."""
    load_s: float = 5.0
    """From the start of its process until it is ready."""
    context: int = 4096


def token_at(key: int, position: int) -> int:
    """The token of a request at a position of its answer: the same on each worker."""
    return (key * 7919 + position * 104729) % 32000


@dataclass(slots=True, eq=False)
class _VirtualRow:
    stream: int
    key: int
    prompt: int
    most: int
    position: int
    received_at: float
    slot_at: float = 0.0
    first_at: float = 0.0


class VirtualWorker:
    """One worker of a machine, over all its incarnations. Owns its end of the link."""

    def __init__(
        self,
        loop: SimulationLoop,
        name: str,
        engine: EngineModel,
        join: Callable[[JoinRequest], None],
        latency_s: Callable[[], float],
        poison: Container[int] = (),
    ) -> None:
        """`join` passes a request to join to its gateway. A request with a key in `poison` ends its process."""
        self.name = name
        self.version = 1
        """The version of its program at the next start."""
        self.unreachable = False
        """The network is cut. Changed by its machine."""
        self.slowness = 1.0
        """The factor of its steps."""
        self.hangs = False
        """Its engine stands; its heartbeats go on. Its next process does not hang."""
        self.fails_step = False
        """Its next step fails."""
        self.tokens = 0
        """Tokens that it has generated, over all incarnations."""
        self._loop = loop
        self._engine = engine
        self._join = join
        self._latency_s = latency_s
        self._poison = poison
        self._lives = itertools.count(1)
        self._life = 0
        """The number of its process; 0 while there is none."""
        self._link: VirtualLink | None = None
        self._wire: Wire | None = None
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[_VirtualRow] = deque()
        self._rows: list[_VirtualRow] = []
        self._stepping = self._ready = self._draining = self.hangs = self.fails_step = False
        self._steps = self._steps_failed = self._reached = self._slowest_ms = 0
        self._last_frame = self._loop.time()

    # Its process.

    def start(self) -> None:
        """Start its process, which asks to join."""
        self._reset()
        self._life = next(self._lives)
        self._connect(self._life)

    def kill(self) -> None:
        """End its process. The kernel closes the connection, and its supervisor starts another process."""
        if self._life:
            if self._link is not None:
                self._link.break_off("its process has ended")
            self._restart()

    def vanish(self) -> None:
        """Its machine is gone without a word: the gateway must notice by itself."""
        self._cut_off()
        self._end()

    def set_latency(self, latency_s: float) -> None:
        """Change the latency of its network."""
        if self._wire is not None:
            self._wire.latency_s = latency_s

    def cut(self) -> None:
        """Cut the network. Both ends give the connection up after `GIVE_UP_S`, unless it is healed before."""
        self.unreachable = True
        self._cut_off()

    def heal(self) -> None:
        """Make the network whole."""
        self.unreachable = False
        if self._wire is not None:
            self._wire.heal()

    def _cut_off(self) -> None:
        wire, link, life = self._wire, self._link, self._life
        if wire is None or link is None:
            return
        wire.cut = True

        def give_up() -> None:
            if wire.cut:
                link.lose("no heartbeat of the connection")
                self._if_alive(life, self._restart)

        self._loop.after(GIVE_UP_S, give_up)

    def _end(self) -> None:
        self._life, self._link, self._wire = 0, None, None

    def _restart(self) -> None:
        self._end()
        self.start()

    def _if_alive(self, life: int, then: Callable[[], None]) -> None:
        if life == self._life:
            then()

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        life = self._life
        self._loop.after(seconds, lambda: self._if_alive(life, then))

    # Its link.

    def _connect(self, life: int) -> None:
        if self.unreachable:
            self._later(RETRY_S, lambda: self._connect(life))
            return
        wire = self._wire = Wire(self._loop, self._latency_s())
        link = VirtualLink(
            self._loop,
            wire,
            lambda frames: self._if_alive(life, lambda: self._receive(frames)),
            lambda: self._if_alive(life, self._restart),
        )
        engine = self._engine
        digest = f"version {self.version}"
        hello = Hello(
            *(PROTOCOL_VERSION, self.name, 0, life, MODEL, "scripted", "none", engine.slots, engine.context),
            config_digest=digest,
            model_digest="one",
        )
        request = JoinRequest(self.name, "192.0.2.1:1", hello, link)
        self._link = link
        wire.send(lambda: self._loop.meter.gateway(self._join, request), up=True)

    def _send(self, *events: Event) -> None:
        assert self._link is not None, "a process without a link sends nothing"
        self._last_frame = self._loop.time()
        self._link.deliver([encode(event) for event in events])

    def _receive(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            match decode_command(frame):
                case Welcome(refusal=refusal):
                    self._welcome(refusal)
                case Submit() as submit:
                    self._take(submit)
                case Cancel(stream):
                    self._cancel(stream)
                case Drain(grace_ms):
                    self._draining = True
                    self._later(grace_ms / 1000, self._leave)
                    self._leave_when_idle()
                case Stop():
                    self._leave()
            if not self._life:
                return

    def _welcome(self, refusal: str) -> None:
        if refusal:
            self._link = self._wire = None
            life = self._life = next(self._lives)  # a later one: this connection concerns it no more
            self._later(RETRY_S, lambda: self._connect(life))
            return
        self._later(self._engine.load_s, self._become_ready)
        self._later(HEARTBEAT_S, self._beat)

    def _become_ready(self) -> None:
        if self._link is not None:
            self._ready = True
            self._send(Ready(Capabilities(chat=False, text=False), step_ms=int(self._engine.step_s * 1000)))

    def _beat(self) -> None:
        if self._link is None:
            return
        due = self._last_frame + HEARTBEAT_S
        if due <= self._loop.time():
            self._send(Heartbeat(self._gauges()))
            due = self._loop.time() + HEARTBEAT_S
        self._later(due - self._loop.time(), self._beat)

    def _leave(self) -> None:
        """Fail what it has, say goodbye, and start anew."""
        rest = [*self._rows, *self._waiting]
        if rest:
            self._send(*(Failed(row.stream, ErrorCode.DRAINING, "it leaves") for row in rest))
        self._say_goodbye()

    def _leave_when_idle(self) -> None:
        if self._draining and not self._rows and not self._waiting:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self._send(Bye(ByeReason.STOPPED, ""))
        assert self._link is not None
        self._link.break_off("it left")
        self._restart()

    # Its engine.

    def _take(self, submit: Submit) -> None:
        if self._draining:
            self._send(Failed(submit.stream, ErrorCode.DRAINING, "it leaves"))
            return
        assert isinstance(submit.input, TokensInput)
        prompt = submit.input.tokens
        most = submit.limits.max_tokens or 0
        now = self._loop.time()
        self._waiting.append(_VirtualRow(submit.stream, prompt[0], len(prompt), most, len(submit.resume), now))
        self._reached = max(self._reached, submit.stream)
        self._begin_step()

    def _cancel(self, stream: int) -> None:
        for rows in (self._rows, self._waiting):
            for row in rows:
                if row.stream == stream:
                    rows.remove(row)
                    self._send(Finished(stream, "cancelled", Usage(0, 0)))
                    self._leave_when_idle()
                    return

    def _begin_step(self) -> None:
        if self._stepping or self.hangs:
            return
        prefilled = 0
        while self._waiting and len(self._rows) < self._engine.slots:
            row = self._waiting.popleft()
            row.slot_at = self._loop.time()
            prefilled += row.prompt + row.position
            self._rows.append(row)
        if self._rows:
            self._stepping = True
            engine = self._engine
            step_s = engine.step_s + engine.row_s * len(self._rows) + engine.prefill_s * prefilled
            self._slowest_ms = max(self._slowest_ms, int(1000 * step_s * self.slowness))
            self._later(step_s * self.slowness, self._end_step)

    def _end_step(self) -> None:
        if self.hangs:
            return
        self._stepping = False
        self._steps += 1
        if not self._poison or not any(row.key in self._poison for row in self._rows):
            self._send(*(self._failed_step() if self.fails_step else self._step()))
            self._leave_when_idle()
            self._begin_step()
        else:
            self.kill()

    def _step(self) -> list[Event]:
        now = self._loop.time()
        deltas, started, ends = [], [], []
        for row in self._rows:
            deltas.append(Delta(row.stream, (token_at(row.key, row.position),), TEXT))
            row.position += 1
            if not row.first_at:
                row.first_at = now
                started.append(StartedStream(row.stream, prompt_tokens=row.prompt))
            if row.position >= row.most:
                ends.append(row)
        self.tokens += len(deltas)
        for row in ends:
            self._rows.remove(row)
        step = Step(tuple(deltas), self._gauges(), tuple(started))
        return [step, *(Finished(row.stream, "length", self._usage(row)) for row in ends)]

    def _failed_step(self) -> list[Event]:
        self.fails_step = False
        self._steps_failed += 1
        rows, self._rows = self._rows, []
        failed = [Failed(row.stream, ErrorCode.STEP, "the step failed") for row in rows]
        return [Heartbeat(self._gauges()), *failed]

    def _usage(self, row: _VirtualRow) -> Usage:
        queue_s, prefill_s = row.slot_at - row.received_at, row.first_at - row.slot_at
        times = (int(1000 * seconds) for seconds in (queue_s, prefill_s, self._loop.time() - row.first_at))
        return Usage(row.prompt, row.position, *times)

    def _gauges(self) -> Gauges:
        return Gauges(
            slots_active=len(self._rows),
            queue_depth=len(self._waiting),
            steps=self._steps,
            steps_failed=self._steps_failed,
            slowest_step_ms=self._slowest_ms,
            reached=self._reached,
        )
