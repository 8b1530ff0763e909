"""The listening sockets of a gateway whose connections are accepted by fronts."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio
from starlette.types import ASGIApp

from actors.actor import Actor, ActorStopped, AskFailed, AskTimeout, M, Ref, TooManyAsks
from actors.mailbox import MailboxFull
from gateway.fronts.connection_counts import ConnectionCounts
from gateway.fronts.frames import LeaveFront, RetireConnections, StopAccepting
from gateway.fronts.front import Front, FrontMessage, ReplaceCertificate
from gateway.fronts.process import EXIT_S, TERM_S
from gateway.fronts.server import FLUSH_S
from gateway.fronts.spec import FrontSettings, FrontSpec
from gateway.http.conventions import Application
from gateway.http.listeners import Listeners
from gateway.http.probes import ProbesOnly
from gateway.http.server import END_S
from gateway.http.tls import TlsInvalid
from gateway.metrics.metrics import Metrics
from gateway.settings import GatewaySettings

CERTIFICATE_S = 10.0
"""Time in which every front must have read a new certificate."""


class Spawn(Protocol):
    """Starts an actor: see `Context.spawn`."""

    def __call__(self, name: str, actor: Actor[M]) -> Ref[M]: ...


class FrontedListeners(Listeners):
    """The sockets, which this process only keeps: its fronts accept from them. `serve` starts the fronts."""

    def __init__(self, sockets: Listeners, spawn: Spawn, metrics: Metrics) -> None:
        super().__init__(*sockets.every)
        self._spawn = spawn
        self._metrics = metrics
        self._fronts: list[tuple[Front, Ref[FrontMessage]]] = []
        self._retired: RetireConnections | None = None
        metrics.watch_fronts(lambda: [front.sample() for front, _ in self._fronts])
        if self.first.tls is not None:
            self.first.tls.spread = self._spread_certificate

    @property
    def connections(self) -> int:
        return sum(front.connections for front, _ in self._fronts)

    def retire(self, within_s: float | None = None) -> None:
        super().retire(within_s)
        self._retired = RetireConnections(within_s)
        self._tell(self._retired)

    def stop(self) -> None:
        super().stop()
        self._tell(StopAccepting())

    async def serve(
        self,
        app: Application,
        settings: GatewaySettings,
        *,
        shutdown: anyio.Event,
        grace_s: Callable[[], float],
        probes: ASGIApp | None = None,
    ) -> None:
        """Let fronts serve until `shutdown` is set and their connections are done."""
        probes = probes or ProbesOnly(app, self.first.note_refused, settings)
        tcp = None if self.first is self.unix else self.first.fileno()
        unix = None if self.unix is None else self.unix.fileno()
        with ConnectionCounts.made(settings.gateways) as counts:
            try:
                for number in range(settings.gateways):
                    spec = FrontSpec(number, FrontSettings.of(settings), tcp, unix, counts.descriptor)
                    lost = partial(counts.note, number, 0)
                    refused = self._metrics.connections_refused.inc
                    front = Front(spec, app, probes, refused, lost, fronts=settings.gateways)
                    self._fronts.append((front, self._spawn(f"front {number}", front)))
                if self._retired is not None:  # before it served
                    self._tell(self._retired)
                await shutdown.wait()
                grace = grace_s()
                self._tell(LeaveFront(grace))
                with anyio.move_on_after(grace + END_S + FLUSH_S + EXIT_S + TERM_S):
                    await self._ended()
            finally:
                for _, ref in self._fronts:
                    ref.stop()
                with anyio.CancelScope(shield=True):  # bounded: see `FrontProcess.run`
                    await self._ended()
                self.close()

    async def _ended(self) -> None:
        for _, ref in self._fronts:
            await ref.wait_stopped()

    def _tell(self, message: RetireConnections | StopAccepting | LeaveFront) -> None:
        for _, ref in self._fronts:
            if ref.end is None:
                ref.tell(message, urgent=True)

    async def _spread_certificate(self) -> None:
        """Raises `TlsInvalid`."""
        problems: dict[int, str] = {}

        async def ask(number: int, ref: Ref[FrontMessage]) -> None:
            try:
                problems[number] = await ref.ask(ReplaceCertificate, timeout=CERTIFICATE_S)
            except ActorStopped:
                problems[number] = ""
            except (AskTimeout, AskFailed, MailboxFull, TooManyAsks) as error:
                problems[number] = str(error)

        async with anyio.create_task_group() as group:
            for number, (_, ref) in enumerate(self._fronts):
                group.start_soon(ask, number, ref)
        if failed := {number: text for number, text in problems.items() if text}:
            texts = "; ".join(f"front {number}: {text}" for number, text in sorted(failed.items()))
            raise TlsInvalid(f"not every process has the new certificate: {texts}")
