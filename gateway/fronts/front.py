"""One front as an actor of the gateway: its process is started again when it ends."""

from collections import deque
from collections.abc import Callable

import anyio
import structlog
from msgspec import Struct
from starlette.types import ASGIApp

from actors.actor import Actor, ReplyTo
from actors.process.child import SpawnFailed
from actors.supervision.restart_policy import MAX_REMEMBERED, RestartPolicy
from actors.transport.endpoint import EndpointError
from gateway.errors import RefusalCode
from gateway.fronts.frames import (
    CertificateRead,
    FrontPulse,
    FrontReady,
    InvalidHttpRefused,
    LeaveFront,
    ReadCertificate,
    RetireConnections,
    StopAccepting,
    ToFront,
)
from gateway.fronts.inbox import GATEWAY_FRAMES
from gateway.fronts.outbox import FrameOutbox
from gateway.fronts.process import FrontProcess, FrontReport
from gateway.fronts.relayed import RelayedExchanges
from gateway.fronts.spec import FrontSpec
from gateway.http.conventions import Application
from gateway.metrics.samples import FrontSample
from protocol.errors import ErrorCode

POLICY = RestartPolicy(max_failures=None)
"""A front is never given up: the others serve meanwhile, and without any the connections wait in the socket's queue."""
_CODES: dict[str, ErrorCode | RefusalCode] = {code.value: code for code in (*ErrorCode, *RefusalCode)}
_NO_PULSE = FrontPulse(0, False, 0, 0.0, 0.0, 0)

_log = structlog.get_logger("gateway.fronts.front")


class ReplaceCertificate(Struct, frozen=True):
    """Lets the front read its certificate again; the reply is why it did not, or empty."""

    reply: ReplyTo[str]


FrontMessage = FrontReport | RetireConnections | StopAccepting | LeaveFront | ReplaceCertificate


class Front(Actor[FrontMessage]):
    """Keeps one front running. Requests that a lost process has read end as if their clients had left: streams are
    cancelled, or kept if they are resumable."""

    def __init__(
        self,
        spec: FrontSpec,
        app: Application,
        probes: ASGIApp,
        note_refused: Callable[[int], None],
        on_lost: Callable[[], None],
        *,
        fronts: int = 1,
    ) -> None:
        """`probes` serves spare connections; `note_refused` counts the connections that it rejects; `on_lost` is called
        when a process has ended, with its connections. It is one of so many `fronts`, which share the turns of the
        event loop."""
        self._spec = spec
        self._app = app
        self._probes = probes
        self._note_refused = note_refused
        self._on_lost = on_lost
        self._turn_frames = max(1, GATEWAY_FRAMES // fronts)
        self._process: FrontProcess | None = None
        self._ready = False
        self._pulse = _NO_PULSE
        self._restarts = 0
        self._earlier_cpu_s = 0.0
        """Processor time of the processes before this one."""
        self._retired: RetireConnections | None = None
        self._stopping = False
        """It accepts no more connections, or will not as soon as it receives `StopAccepting`."""
        self._leaving = anyio.Event()
        """It is not started again."""
        self._certificates: dict[int, ReplyTo[str]] = {}
        self._asked = 0

    @property
    def connections(self) -> int:
        """Its open connections at its last pulse. At least one from `StopAccepting` to the pulse that follows it: until
        then the front may have accepted one that the gateway does not know."""
        unknown = self._stopping and self._process is not None and not self._pulse.stopped
        return max(self._pulse.connections, int(unknown))

    def sample(self) -> FrontSample:
        """Its state for a scrape."""
        pulse = self._pulse
        cpu_s = self._earlier_cpu_s + pulse.cpu_s
        return FrontSample(
            self._spec.number, self._ready, pulse.connections, self._restarts, cpu_s, pulse.memory_bytes, pulse.lag_s
        )

    def started(self) -> None:
        self.context.start_soon(self._keep_running)

    def handle(self, message: FrontMessage) -> None:
        match message:
            case FrontReady():
                self._ready = True
                _log.info("front_ready", front=self._spec.number)
            case FrontPulse():
                self._note_refused(message.refused - self._pulse.refused)
                self._pulse = message
            case InvalidHttpRefused(request_id, status, code):
                record = self._app.records.begin({"path": "", "baton.request_id": request_id})
                record.reason = _CODES[code]
                record.started(status)
            case CertificateRead(number, problem):
                if (reply := self._certificates.pop(number, None)) is not None:
                    reply.send(problem)
            case ReplaceCertificate(reply):
                self._replace_certificate(reply)
            case RetireConnections():
                self._retired = message
                self._send(message)
            case StopAccepting() | LeaveFront():
                self._stopping |= isinstance(message, StopAccepting)
                self._leaving.set()
                self._send(message)

    def _send(self, frame: ToFront) -> None:
        if self._process is not None:
            self._process.send(frame)

    def _replace_certificate(self, reply: ReplyTo[str]) -> None:
        if self._process is None:
            reply.send("")  # the next one reads it at its start
            return
        self._asked += 1
        self._certificates[self._asked] = reply
        self._process.send(ReadCertificate(self._asked))

    async def _keep_running(self) -> None:
        failures: deque[float] = deque(maxlen=MAX_REMEMBERED)
        while not self._leaving.is_set():
            reason = await self._run_once()
            if self._leaving.is_set():
                break
            failures.append(anyio.current_time())
            delay_s = POLICY.delay_s(failures, anyio.current_time())
            self._restarts += 1
            _log.warning("front_lost", front=self._spec.number, reason=reason, restart_s=delay_s)
            with anyio.move_on_after(delay_s):
                await self._leaving.wait()
        self.context.ref.stop()

    async def _run_once(self) -> str:
        """Run one process to its end. Returns the reason of its end."""
        report: Callable[[FrontReport], None] = self.context.ref.tell
        try:
            self._process = FrontProcess(self._spec, self._exchanges, report, self._turn_frames)
            if self._retired is not None:
                self._process.send(self._retired)
            return await self._process.run()
        except (EndpointError, SpawnFailed) as error:
            return str(error)
        finally:
            self._process, self._ready = None, False
            self._on_lost()
            self._earlier_cpu_s += self._pulse.cpu_s
            self._pulse = _NO_PULSE
            for reply in self._certificates.values():
                reply.send("")  # the next process reads it at its start
            self._certificates.clear()

    def _exchanges(self, outbox: FrameOutbox[ToFront]) -> RelayedExchanges:
        # Their tasks are the actor's: they end in their own time when the process is gone.
        return RelayedExchanges(self._app, self._probes, outbox, self.context.start_soon)
