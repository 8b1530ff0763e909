"""The link of a remote worker to its gateway, from its `Hello` to its end. Passes frames on in both directions."""

from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from actors.process.exit_cause import Origin
from actors.supervision.messages import RestartWorker
from actors.supervision.worker import IncarnationLost, WorkerState, WorkerStatus, WorkerUnavailable
from actors.supervision.worker_actor import WorkerRef
from actors.transport.link import CurveKeys, Link, LinkClosed, LinkFull, OnLost, OnMessage
from protocol.bounds import clip
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Command, Drain, Stop, Submit, Tokenize, Welcome
from protocol.errors import ByeReason, ErrorCode, ProtocolError
from protocol.events import Bye, Event, Failed, Finished, Heartbeat, Hello, Loading, Tokenized

LAST_FRAMES_S = 0.2
"""Time for the last frames to leave, for which the event loop waits."""

_NOT_FOR_A_REQUEST = frozenset({Origin.OUTSIDE, Origin.MISBEHAVED})
"""Origins of an end that no request has caused."""


class GatewayLink:
    """Synchronous but for `send_hello`. Its owner sees to its messages, its heartbeat and its end."""

    def __init__(
        self, worker: WorkerRef, address: str, keys: CurveKeys, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Raises `EndpointError`."""
        self._worker = worker
        self._log = structlog.get_logger("joining").bind(worker=worker.name)
        self._live: set[int] = set()
        self._queries: set[int] = set()
        self._incarnation = 0
        self._ready = False
        self._loading: Loading | None = None
        self._sent = False
        self._leaves = False
        self.ended: str | None = None
        """The reason of its end."""
        self._link = Link.connect(address, on_message, on_lost=on_lost, keys=keys)

    @property
    def joined(self) -> bool:
        return self._incarnation > 0

    @property
    def live(self) -> frozenset[int]:
        """The gateway's sequences that the worker still has."""
        return frozenset(self._live)

    async def send_hello(self, hello: Hello, key: str = "") -> None:
        """Say `Hello`, without a number: the gateway gives it one of its own. `key` is the public key to register."""
        try:
            await self._link.send([encode(replace(hello, incarnation=0, key=key))])
        except LinkClosed:
            pass  # its owner learns it, or knows it already

    def send_heartbeat(self) -> None:
        """Send a heartbeat, unless something else was sent since the last call."""
        if not self._sent:
            self.send(Heartbeat(self._worker.status.gauges))
        self._sent = False

    def end(self, reason: str) -> None:
        """Close the link. The first reason counts."""
        if self.ended is None:
            self.ended = reason
            self._link.close(LAST_FRAMES_S)

    def send(self, event: Event) -> None:
        """Send the gateway a frame, once it has joined the worker. If it takes nothing for so long that the link is
        full, it is as good as gone."""
        if self.ended is not None or not self.joined:
            return
        try:
            self._link.send_nowait([encode(event)])
            self._sent = True
        except LinkFull:
            self.end("the gateway takes nothing any more")
        except LinkClosed:
            pass  # its loss is about to be reported

    # What the worker sends.

    def pass_on(self, event: Event) -> None:
        """A step, an end, a failure, or the answer to a query."""
        if isinstance(event, Tokenized):
            if event.query not in self._queries:
                return  # the gateway of an earlier link asked
            self._queries.discard(event.query)
        elif isinstance(event, Finished | Failed):
            self._live.discard(event.stream)
        self.send(event)

    def changed(self, status: WorkerStatus) -> None:
        """Its loading and its readiness."""
        if not self.joined:
            return
        if status.loading is not None and status.loading != self._loading and not self._ready:
            self._loading = status.loading
            self.send(status.loading)
        if status.state is WorkerState.READY and status.ready is not None and not self._ready:
            self._ready = True
            self.send(status.ready)

    def worker_lost(self, lost: IncarnationLost) -> None:
        """Its process is gone, and all that it held."""
        self._live.clear()
        self._queries.clear()
        died = ByeReason.KILLED if lost.origin in _NOT_FOR_A_REQUEST else ByeReason.DIED
        self.send(Bye(ByeReason.STOPPED if self._leaves else died, clip(lost.reason)))
        self.end(f"the worker was lost: {lost.reason}")

    # What the gateway sends.

    def receive(self, frames: Sequence[bytes]) -> None:
        """A message of the gateway."""
        for frame in frames:
            if self.ended is not None:
                return
            try:
                self._take(decode_command(frame))
            except ProtocolError as error:
                self._log.error("frame_refused", bytes=len(frame), problem=str(error))
                self.send(Bye(ByeReason.PROTOCOL, clip(f"the gateway sent an invalid frame: {error}")))
                self.end(f"the gateway broke the protocol: {error}")

    def _take(self, command: Command) -> None:
        match command:
            case Welcome():
                self._welcome(command)
            case _ if not self.joined:
                raise ProtocolError(f"{type(command).__name__} came before Welcome")
            case Submit(stream=stream):
                self._live.add(stream)
                self._submit(command)
            case Tokenize():
                self._ask(command)
            case Cancel():
                self._cancel(command)
            case Drain(grace_ms):
                self._leave(grace_ms / 1000)
            case Stop():
                self._leave(0.0)

    def _welcome(self, welcome: Welcome) -> None:
        if self.joined:
            raise ProtocolError("a second Welcome")
        if welcome.refusal or not welcome.incarnation:
            self.end(f"the gateway refused: {welcome.refusal or 'it gave no incarnation'}")
            return
        self._incarnation = welcome.incarnation
        self._log.info("joined", incarnation=welcome.incarnation)
        self.changed(self._worker.status)

    def _submit(self, submit: Submit) -> None:
        try:
            self._worker.send_nowait([submit])
        except WorkerUnavailable as error:
            self._live.discard(submit.stream)
            code = ErrorCode.DRAINING if self._leaves else ErrorCode.OVERLOADED
            self.send(Failed(submit.stream, code, clip(str(error))))

    def _ask(self, asked: Tokenize) -> None:
        try:
            self._worker.send_nowait([asked])
        except WorkerUnavailable as error:
            code = ErrorCode.DRAINING if self._leaves else ErrorCode.OVERLOADED
            self.send(Tokenized(asked.query, text=clip(str(error)), code=code))
        else:
            self._queries.add(asked.query)

    def _cancel(self, cancel: Cancel) -> None:
        try:
            self._worker.send_nowait([cancel])
        except WorkerUnavailable as error:
            # Its slot would compute for nothing: a new incarnation has no such sequence.
            self.end(f"a cancel did not reach the worker: {error}")

    def _leave(self, grace_s: float) -> None:
        """The gateway wants a fresh process: this one finishes what it has, and another one is started."""
        self._leaves = True
        self._worker.ref.tell(RestartWorker(grace_s), urgent=True)
