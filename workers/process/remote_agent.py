"""A worker of this machine in the service of a gateway on another: its supervisor here, and its link there.

The worker is a process like any other, watched and started again by `WorkerProcess`; this module passes on what the two
say to each other. So a lost link costs no reload: the worker keeps its model, what it computes for the lost gateway is
cancelled, and it joins again as a new incarnation. And a death costs no waiting: the gateway is told at once.
"""

import functools
from collections.abc import Callable

import anyio
import structlog
from msgspec.structs import replace

from actors.process.exit_cause import Origin
from actors.supervision.policy import Policy, Restart, RestartPolicy
from actors.supervision.worker import Deadlines, WorkerState, WorkerStatus, WorkerUnavailable
from actors.supervision.worker_process import CommandLine, WorkerProcess
from actors.transport.endpoint import EndpointError, check_address
from actors.transport.keys import from_z85
from actors.transport.link import CurveKeys, Link, LinkClosed, LinkFull
from protocol.bounds import MAX_FRAMES_PER_MESSAGE, clip
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Command, Drain, Stop, Submit, Welcome
from protocol.errors import ByeReason, ErrorCode, ProtocolError
from protocol.events import HEARTBEAT_S, Bye, Event, Failed, Finished, Heartbeat, Hello, Loading

WELCOME_S = 15.0
LAST_WORDS_S = 0.2
"""For the last frames to leave; the event loop waits for them."""
RETRY = RestartPolicy(max_failures=64, window_s=60.0, first_delay_s=0.25, max_delay_s=10.0)
"""How long to wait before the gateway is tried again."""
_JOINED = frozenset({WorkerState.LOADING, WorkerState.READY})


class WorkerGaveUp(Exception):
    """Raised when the worker's process cannot be kept alive; the message says why."""


class Session:
    """One link to the gateway, from its `Hello` to its loss. Synchronous but for `run`."""

    def __init__(self, worker: WorkerProcess, address: str, keys: CurveKeys) -> None:
        self._worker = worker
        self._log = structlog.get_logger("joining").bind(worker=worker.name)
        self._live: set[int] = set()
        self._incarnation = 0
        self._ready = False
        self._loading: Loading | None = None
        self._sent = 0
        self._leaves = False
        self.ended: str | None = None
        """Why it is over, once it is."""
        self._over = anyio.Event()
        self._welcome = anyio.Event()
        self._link = Link.connect(address, self._heard, on_lost=self.end, keys=keys)

    @property
    def welcomed(self) -> bool:
        return self._incarnation > 0

    @property
    def live(self) -> frozenset[int]:
        """The gateway's sequences that the worker still has."""
        return frozenset(self._live)

    async def run(self, hello: Hello) -> None:
        """Say `Hello` and send heartbeats until the link is lost."""
        try:
            with anyio.move_on_after(WELCOME_S):
                await self._link.send([encode(_anonymous(hello))])
                await self._welcome.wait()
        except LinkClosed:
            pass  # `end` has been called, or is about to be
        if not self.welcomed:
            self.end(f"no answer within {WELCOME_S:g} s")
        while self.ended is None:
            sent = self._sent
            with anyio.move_on_after(HEARTBEAT_S):
                await self._over.wait()
            if self._sent == sent:
                self.say(Heartbeat(self._worker.status.gauges))

    def end(self, reason: str) -> None:
        """Close the link. The first reason counts."""
        if self.ended is None:
            self.ended = reason
            self._link.close(LAST_WORDS_S)
            self._welcome.set()
            self._over.set()

    def say(self, event: Event) -> None:
        """Tell the gateway. One that takes nothing for so long that the link is full is as good as gone."""
        if self.ended is not None or not self.welcomed:
            return
        try:
            self._link.send_nowait([encode(event)])
            self._sent += 1
        except LinkFull:
            self.end("the gateway takes nothing any more")
        except LinkClosed:
            pass  # `end` is about to be called

    # What the worker says.

    def heard_event(self, event: Event) -> None:
        """A step, an end or a failure."""
        if isinstance(event, Finished | Failed):
            self._live.discard(event.stream)
        self.say(event)

    def heard_status(self, status: WorkerStatus) -> None:
        """Its loading and its readiness."""
        if not self.welcomed:
            return
        if status.loading is not None and status.loading != self._loading and not self._ready:
            self._loading = status.loading
            self.say(status.loading)
        if status.state is WorkerState.READY and status.ready is not None and not self._ready:
            self._ready = True
            self.say(status.ready)

    def heard_loss(self, reason: str, origin: Origin) -> None:
        """Its process is gone, and all that it held."""
        self._live.clear()
        died = ByeReason.KILLED if origin is Origin.OUTSIDE else ByeReason.DIED
        code = ByeReason.STOPPED if self._leaves else died
        self.say(Bye(code, clip(reason)))
        self.end(f"the worker was lost: {reason}")

    # What the gateway says.

    def _heard(self, frames: list[bytes]) -> None:
        for frame in frames:
            if self.ended is not None:
                return
            try:
                self._take(decode_command(frame))
            except ProtocolError as error:
                self._log.error("frame_refused", bytes=len(frame), problem=str(error))
                self.say(Bye(ByeReason.PROTOCOL, clip(f"the gateway sent a frame that is none: {error}")))
                self.end(f"the gateway broke the protocol: {error}")

    def _take(self, command: Command) -> None:
        match command:
            case Welcome():
                self._welcomed(command)
            case _ if not self.welcomed:
                raise ProtocolError(f"{type(command).__name__} came before Welcome")
            case Submit(stream=stream):
                self._live.add(stream)
                self._pass_on(command)
            case Cancel():
                self._pass_on(command)
            case Drain(grace_ms):
                self._leave(grace_ms / 1000)
            case Stop():
                self._leave(0.0)

    def _welcomed(self, welcome: Welcome) -> None:
        if self.welcomed:
            raise ProtocolError("a second Welcome")
        if welcome.refusal or not welcome.incarnation:
            self.end(f"the gateway refused: {welcome.refusal or 'it gave no incarnation'}")
            return
        self._incarnation = welcome.incarnation
        self._log.info("joined", incarnation=welcome.incarnation)
        self._welcome.set()
        self.heard_status(self._worker.status)

    def _pass_on(self, command: Submit | Cancel) -> None:
        try:
            self._worker.send_nowait([command])
        except WorkerUnavailable as error:
            if isinstance(command, Submit):
                self._live.discard(command.stream)
                code = ErrorCode.DRAINING if self._leaves else ErrorCode.OVERLOADED
                self.say(Failed(command.stream, code, clip(str(error))))
            else:
                # Its slot would compute for nobody: a new incarnation has no such sequence.
                self.end(f"a cancel did not reach the worker: {error}")

    def _leave(self, grace_s: float) -> None:
        """The gateway wants a fresh process: this one finishes what it has, and another one is started."""
        self._leaves = True
        self._worker.restart_nowait(grace_s)


class Joining:
    """Keeps one worker alive and joined. Hears what it says (`WorkerListener`)."""

    def __init__(
        self,
        name: str,
        command: CommandLine,
        address: str,
        keys: CurveKeys,
        *,
        policy: Policy | None = None,
        deadlines: Deadlines | None = None,
        on_status: Callable[[WorkerStatus], None] | None = None,
    ) -> None:
        """Raises `actors.transport.endpoint.EndpointError` for an address that is none."""
        check_address(address, secured=True)
        self.process = WorkerProcess(name, command, self, policy=policy, deadlines=deadlines)
        self._connect = functools.partial(Session, self.process, address, keys)
        self._on_status = on_status
        self._log = structlog.get_logger("joining").bind(worker=name, gateway=address, key=from_z85(keys.public))
        self._session: Session | None = None
        self._left: frozenset[int] = frozenset()  # what an ended session's gateway still had on the worker
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Until `stop`, or a cancel. Raises `WorkerGaveUp`."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._stay_joined)
            await self.process.run()
            group.cancel_scope.cancel()
        if self._session is not None:
            self._session.end("the worker was stopped")
        if self.process.status.state is WorkerState.GIVEN_UP:
            raise WorkerGaveUp(self.process.status.reason)

    def stop(self) -> None:
        """Leave for good. What is live goes on elsewhere: the gateway is told first."""
        if self._session is not None:
            self._session.say(Bye(ByeReason.STOPPED, "its machine stops it"))
            self._session.end("the worker was told to stop")
        self.process.stop_nowait()

    async def _stay_joined(self) -> None:
        failures: list[float] = []
        while True:
            await self._until(self._free)
            hello = self.process.status.hello
            assert hello is not None
            try:
                session = self._session = self._connect()
            except EndpointError as error:
                reason: str | None = str(error)
            else:
                await session.run(hello)
                self._session = None
                self._take_back(session)
                reason = session.ended
                if session.welcomed:
                    failures.clear()
            failures = [*failures[-63:], anyio.current_time()]
            decision = RETRY.decide(failures, failures[-1])
            delay_s = decision.delay_s if isinstance(decision, Restart) else RETRY.max_delay_s
            self._log.warning("not_joined", reason=reason, retry_s=delay_s)
            await anyio.sleep(delay_s)

    def _free(self) -> bool:
        """There is a worker, and it has nothing of an earlier gateway's any more."""
        status = self.process.status
        return status.hello is not None and status.state in _JOINED and not self._left

    def _take_back(self, session: Session) -> None:
        """The gateway has replayed what it had here: nobody waits for it."""
        self._left = session.live
        if self._left:
            cancels = [Cancel(stream) for stream in self._left]
            try:
                for start in range(0, len(cancels), MAX_FRAMES_PER_MESSAGE):
                    self.process.send_nowait(cancels[start : start + MAX_FRAMES_PER_MESSAGE])
            except WorkerUnavailable as error:
                self._log.warning("worker_restarts", reason=f"it cannot be told to cancel: {error}")
                self.process.restart_nowait(0.0)

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # What the worker says (`WorkerListener`).

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """A step, an end or a failure."""
        if self._left:
            if isinstance(event, Finished | Failed):
                self._left -= {event.stream}
                self._notify()
        elif self._session is not None:
            self._session.heard_event(event)

    def worker_changed(self, status: WorkerStatus) -> None:
        """Its state or its loading."""
        if self._session is not None:
            self._session.heard_status(status)
        self._notify()
        if self._on_status is not None:
            self._on_status(status)

    def worker_lost(self, worker: str, incarnation: int, reason: str, origin: Origin) -> None:
        """Its process is gone."""
        self._left = frozenset()
        if self._session is not None:
            self._session.heard_loss(reason, origin)
        self._notify()


def _anonymous(hello: Hello) -> Hello:
    """As the gateway is to hear it, which gives it a number of its own."""
    return replace(hello, incarnation=0)
