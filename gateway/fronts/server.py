"""A front: the process that serves HTTP on the gateway's sockets, and relays requests to it."""

import time
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
import msgspec
import psutil
import structlog

from actors.process.descriptors import raise_limit
from actors.transport.link import Link
from gateway.fleet.descriptors import Descriptors
from gateway.fronts.connection_counts import ConnectionCounts
from gateway.fronts.frames import (
    CertificateRead,
    FrontPulse,
    FrontReady,
    LeaveFront,
    ReadCertificate,
    RetireConnections,
    StopAccepting,
    ToFront,
    ToGateway,
    decode_to_front,
)
from gateway.fronts.inbox import FRONT_FRAMES, FrameInbox
from gateway.fronts.outbox import FrameOutbox
from gateway.fronts.relay import ExchangeFrame, Relay
from gateway.fronts.spec import FrontSpec
from gateway.http.listener import Listener
from gateway.http.listeners import Listeners
from gateway.http.server import adopt
from gateway.http.tls import Tls, TlsInvalid, tls_of
from gateway.http.unix_socket import adopt_unix
from gateway.loop_lag import LoopLag
from gateway.settings import GatewaySettings

PULSE_S = 1.0
LEAVING_PULSE_S = 0.1
"""The same once connections end: the gateway waits for the last one."""
ACCEPTS_PER_TURN = 4
"""Connections that are accepted in one turn of the event loop. So a burst of them is spread over the fronts."""
FLUSH_S = 1.0
"""Time for the last frames to leave."""

_log = structlog.get_logger("gateway.fronts.server")


class FrontServer:
    """Serves until the gateway lets it leave. `orphaned` is called, and must end the process, when the gateway is
    gone."""

    def __init__(self, spec: FrontSpec, endpoint: str, orphaned: Callable[[str], None]) -> None:
        """Connects the link. Raises `EndpointError` and `TlsInvalid`."""
        self._settings = spec.settings.chosen()
        self._tls = tls_of(self._settings)
        self._listeners = _adopted(spec, self._settings, self._tls)
        self._refused = 0
        if spec.counts is not None:
            counts, opened = ConnectionCounts(spec.counts), self._listeners.first.open
            opened.note = partial(counts.note, spec.number)
            opened.elsewhere = partial(counts.others, spec.number)
        self._listeners.keep_from(Descriptors.plan(raise_limit(), workers=1).first_kept, self._note_refused)
        self._link = Link.connect(endpoint, self._received, on_lost=orphaned)
        self._outbox: FrameOutbox[ToGateway] = FrameOutbox(self._link)
        self._inbox: FrameInbox[ToFront] = FrameInbox(self._take, FRONT_FRAMES)
        self._relay = Relay(self._outbox)
        self._orphaned = orphaned
        self._lag = LoopLag()
        self._process = psutil.Process()
        self._stopped = False
        self._grace_s = 0.0
        self._shutdown = anyio.Event()
        self._certificates: list[int] = []
        """Numbers of the replies that the gateway waits for."""
        self._wanted = anyio.Event()

    async def run(self) -> None:
        """Serve to the end."""
        async with anyio.create_task_group() as group:
            for task in (self._outbox.run, self._lag.run, self._pulse, self._read_certificates):
                group.start_soon(task)
            self._outbox.put(FrontReady())
            await self._listeners.serve(
                self._relay,
                self._settings,
                shutdown=self._shutdown,
                grace_s=lambda: self._grace_s,
                probes=self._relay.spare(),
            )
            group.cancel_scope.cancel()
        with anyio.move_on_after(FLUSH_S):
            await self._outbox.flush()
        self._link.close(FLUSH_S)

    def _received(self, frames: list[bytes]) -> None:
        for frame in frames:
            try:
                self._inbox.add(decode_to_front(frame))
            except msgspec.DecodeError as error:
                self._orphaned(f"the gateway sent an invalid message: {error}")

    def _take(self, frame: ToFront) -> None:
        if isinstance(frame, ExchangeFrame):  # first, as most are
            self._relay.take(frame)
            return
        match frame:
            case RetireConnections(within_s):
                self._listeners.retire(within_s)
            case StopAccepting():
                self._listeners.stop()
                self._stopped = True
                self._report_state()  # the gateway waits for it
            case LeaveFront(grace_s):
                self._grace_s = grace_s
                self._shutdown.set()
            case ReadCertificate(number):
                self._certificates.append(number)
                self._wanted.set()

    def _note_refused(self) -> None:
        self._refused += 1

    async def _pulse(self) -> None:
        while True:
            self._report_state()
            await anyio.sleep(LEAVING_PULSE_S if self._listeners.first.retired else PULSE_S)

    def _report_state(self) -> None:
        pulse = FrontPulse(
            self._listeners.connections,
            self._stopped,
            self._refused,
            self._lag.longest(),
            time.process_time(),
            self._process.memory_info().rss,
        )
        self._outbox.put(pulse)

    async def _read_certificates(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            numbers, self._certificates = self._certificates, []
            problem = await self._replace_certificate()
            for number in numbers:
                self._outbox.put(CertificateRead(number, problem))

    async def _replace_certificate(self) -> str:
        """Read the certificate again. Returns why it could not be used; empty if it is."""
        if self._tls is None:
            return "there is no certificate"
        try:
            self._tls.adopt(await anyio.to_thread.run_sync(self._tls.read))  # the files may be on a network
        except TlsInvalid as error:
            _log.error("tls_not_reloaded", problem=str(error))
            return str(error)
        return ""


def _adopted(spec: FrontSpec, settings: GatewaySettings, tls: Tls | None) -> Listeners:
    """The gateway's sockets, which other fronts accept from, too."""
    found: list[Listener] = []
    if spec.tcp is not None:
        found.append(adopt(spec.tcp, settings, tls))
    if spec.unix is not None:
        found.append(adopt_unix(spec.unix, settings))
    for each in found:
        each.accepts_per_turn = ACCEPTS_PER_TURN
    return Listeners(*found)
