"""The link of a remote worker to its gateway, from its `Hello` to its end. Passes frames on in both directions."""

from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import replace

from actors.supervision.messages import RestartWorker
from actors.supervision.worker import WorkerState, WorkerStatus, WorkerUnavailable
from actors.transport.link import Link, LinkClosed, LinkFull, OnLost, OnMessage
from protocol.bounds import clip
from protocol.codec import decode_command, encode
from protocol.commands import (
    Cancel,
    Command,
    Drain,
    LoadAdapter,
    ReadRows,
    Stop,
    Submit,
    Tokenize,
    UnloadAdapter,
    Welcome,
    WriteRows,
)
from protocol.errors import ByeReason, ErrorCode, ProtocolError
from protocol.events import Bye, Event, Failed, Heartbeat, Hello, Loading, RowsWritten, Tokenized
from workers.process.gateways.address import GatewayAddress
from workers.process.gateways.shared_worker import SharedWorker

LAST_FRAMES_S = 0.2
"""Time for the last frames to leave, for which the event loop waits."""
_LEFT = "the worker left the gateway, as that had asked"


class GatewayLink:
    """Synchronous but for `send_hello`. Its owner sees to its messages, its heartbeat and its end."""

    def __init__(
        self,
        shared: SharedWorker,
        gateway: int,
        address: GatewayAddress,
        clock: Callable[[], float],
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        """`gateway` is its number among those of the worker. Raises `EndpointError`."""
        self._shared = shared
        self._gateway = gateway
        self._clock = clock
        self._log = structlog.get_logger("joining").bind(worker=shared.worker.name)
        self._incarnation = 0
        self._ready = False
        self._loading: Loading | None = None
        self._sent = False
        self._leaves = False
        self._leaves_at: float | None = None
        self.ended: str | None = None
        """The reason of its end."""
        self._link = Link.connect(address.address, on_message, on_lost=on_lost, keys=address.keys.current)

    @property
    def joined(self) -> bool:
        return self._incarnation > 0

    async def send_hello(self, hello: Hello, key: str = "") -> None:
        """Say `Hello`, without a number: the gateway gives it one of its own. `key` is the public key to register."""
        own = replace(hello, incarnation=0, gateways=self._shared.gateways, key=key)
        try:
            await self._link.send([encode(own)])
        except LinkClosed:
            pass  # its owner learns it, or knows it already

    def attend(self) -> None:
        """Send a heartbeat, unless something else was sent since the last call; and leave a gateway whose grace is
        over."""
        if self._leaves_at is not None and self._clock() >= self._leaves_at:
            self._return_all()
        if not self._sent:
            self.send(self._shared.heartbeat(self._gateway, Heartbeat(self._shared.worker.status.gauges)))
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

    def deliver(self, event: Event) -> None:
        """Send the gateway what is about it. Leave if that was the last of a gateway that has let the worker leave."""
        self.send(event)
        if self._leaves_at is not None and not self._shared.live(self._gateway):
            self._say_goodbye()

    def changed(self, status: WorkerStatus) -> None:
        """Its loading and its readiness."""
        if not self.joined:
            return
        if status.loading is not None and status.loading != self._loading and not self._ready:
            self._loading = status.loading
            self.send(status.loading)
        if status.state is WorkerState.READY and status.ready is not None and not self._ready:
            self._ready = True
            # The numbers of several gateways would be in each other's way.
            ready = status.ready if self._shared.alone else replace(status.ready, adapter_places=0)
            self.send(ready)

    def worker_lost(self, why: ByeReason, reason: str) -> None:
        """Its process is gone."""
        self.send(Bye(ByeReason.STOPPED if self._leaves else why, clip(reason)))
        self.end(f"the worker was lost: {reason}")

    def _say_goodbye(self) -> None:
        self.send(Bye(ByeReason.STOPPED, _LEFT))
        self.end(_LEFT)

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
            case Submit():
                self._submit(command)
            case Tokenize():
                self._ask(command)
            case ReadRows():
                self._shared.ask_rows(self._gateway, command)
            case WriteRows():
                self._write(command)
            case LoadAdapter() | UnloadAdapter():
                self._shared.change_adapters(self._gateway, command)
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
        self._shared.joined(self._gateway)
        self.changed(self._shared.worker.status)

    def _submit(self, submit: Submit) -> None:
        if self._leaves:
            self.send(Failed(submit.stream, ErrorCode.DRAINING, "the worker leaves the gateway"))
        else:
            self._shared.submit(self._gateway, submit)

    def _ask(self, asked: Tokenize) -> None:
        if self._leaves:
            self.send(Tokenized(asked.query, text="the worker leaves the gateway", code=ErrorCode.DRAINING))
        else:
            self._shared.ask(self._gateway, asked)

    def _write(self, given: WriteRows) -> None:
        if self._leaves:
            self.send(RowsWritten(given.query, text="the worker leaves the gateway"))
        else:
            self._shared.ask_rows(self._gateway, given)

    def _cancel(self, cancel: Cancel) -> None:
        try:
            self._shared.cancel(self._gateway, cancel.stream)
        except WorkerUnavailable as error:
            # Its slot would compute for nothing: a new incarnation has no such sequence.
            self.end(f"a cancel did not reach the worker: {error}")

    def _leave(self, grace_s: float) -> None:
        """The gateway wants a fresh process: this one finishes what it has, and another one is started. With further
        gateways, which have sequences there as well, the worker only leaves this one."""
        if self._leaves:
            return
        self._leaves = True
        if self._shared.alone:
            self._shared.worker.ref.tell(RestartWorker(grace_s), urgent=True)
        elif grace_s and self._shared.live(self._gateway):
            self._leaves_at = self._clock() + grace_s
        else:
            self._return_all()

    def _return_all(self) -> None:
        self._shared.return_all(self._gateway, "the worker leaves the gateway, and there is no grace any more")
        self._say_goodbye()
