"""The whole gateway in one process: the workers' supervisors, the router and the server, from start to clean end."""

import math
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct

from actors.actor import Actor, ActorStopped, AskFailed, AskTimeout, M, OnFailure, Ref, Terminated, TooManyAsks
from actors.join.listener import MAX_CONNECTIONS
from actors.mailbox import MailboxFull
from actors.process.descriptors import raise_limit
from actors.process.service_manager import ServiceManager
from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerStatus
from actors.system import ActorSystem
from actors.transport.endpoint import sweep
from gateway.admin.adapters.adapter_sources import FetchAdapter
from gateway.app import create_app
from gateway.fleet.descriptors import Descriptors
from gateway.fleet.fleet import Fleet
from gateway.fleet.hand_over import HandOver, SuccessorListens
from gateway.fleet.launch import WorkerLaunch
from gateway.fleet.messages import EndOperations, FleetGaveUp, StopAll
from gateway.fleet.remote_join import RemoteJoin
from gateway.fleet.take_over import Predecessor, TakeOverFailed, take_over
from gateway.fronts.listeners import FrontedListeners
from gateway.garbage_collection import collect_when_idle
from gateway.http.listener import BindError
from gateway.http.listeners import Listeners, listen_on_all
from gateway.http.tls import Tls, tls_of
from gateway.keys.api_keys import ApiKeys
from gateway.loop_lag import LoopLag
from gateway.models.loader import ModelLoader
from gateway.models.messages import LoaderMessage
from gateway.models.terms import ModelTerms, most_workers
from gateway.responses.service import ResponseService
from gateway.routing.admission.request_admission import DEADLINE_MARGIN_S
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.shared.opening import Sharing, open_sharing
from gateway.streaming.resumable import ResumableStreams
from gateway.tracing.opening import exported_traces

if TYPE_CHECKING:
    from gateway.tracing.otlp import OtlpTraces

_log = structlog.get_logger("gateway.daemon")

POLL_S = 0.05
"""Seconds between two checks whether the connections of a gateway that leaves have ended."""
WARNED = 0.25
"""The share of the grace after which every HTTP/2 client has received a GOAWAY. Clients that follow the RFC could
receive it at once, but python-h2 abandons its streams then, so they get time to finish."""
WORKERS_END_S = 15.0
"""Time in which the workers must have ended after they were asked to; their supervisors kill before this."""


class WorkersGaveUp(Exception):
    """Raised when no worker can be kept alive: there is nothing left to serve. The message has the reasons."""


async def run_daemon(
    settings: GatewaySettings,
    workers: Sequence[WorkerLaunch],
    *,
    on_status: Callable[[WorkerStatus], None] | None = None,
    on_listening: Callable[[str, int], None] | None = None,
    policy: RestartPolicy | None = None,
    deadlines: Deadlines | None = None,
    predecessor: Predecessor | None = None,
    keys: ApiKeys | None = None,
    tls: Tls | None = None,
    manager: ServiceManager | None = None,
    models: Sequence[ModelTerms] = (),
    memory_budget: float = math.inf,
    fetch_adapter: FetchAdapter | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then end cleanly; a second signal skips the grace.

    With a `predecessor` connections are taken only when the workers are ready, from its own socket; then it is asked to
    leave.

    `models` are the terms of the models of the workers, which share the memory of `memory_budget` bytes; by default all
    are loaded at the start, and stay.

    `on_listening` gets the address once it is bound (`unix:PATH` and 0 without a port), `on_status` every change of a
    worker. `keys` and `tls` are by default those of the settings. `manager` is notified of the end, and that the event
    loop runs. `fetch_adapter` has the adapters of the hub that requests may load.

    Raises `BindError`, and `ApiKeysInvalid`, `TlsInvalid`, `StoreUnavailable`, `TracesUnavailable` and
    `SharingUnavailable` for the keys, the certificate, the store, the traces and the `redis_url` of the settings,
    before anything starts, `AdapterStateInvalid` for their `lora_state_dir`, and `WorkersGaveUp` or `TakeOverFailed`
    after everything has ended.
    """
    keys = ApiKeys(settings) if keys is None else keys
    tls = tls_of(settings) if tls is None else tls
    manager = ServiceManager({}) if manager is None else manager
    if tls is not None and (warning := tls.warning):
        _log.warning("certificate_refused", problem=warning)
    with closing(ResponseService(settings)) as responses:
        async with exported_traces(settings.otlp_traces_endpoint, settings.flush_s) as traces:
            if folders := sweep():  # of gateways that were killed
                _log.info("stale_sockets_removed", folders=folders)
            router = Router(settings, keys.weight, keys.priority_class)
            sharing = open_sharing(settings.redis_url, keys, router.queue)
            counts = Counter(each.model for each in workers)
            models = models or [ModelTerms(name=name) for name in counts]
            most = most_workers([(counts[each.name], each.bytes) for each in models], memory_budget)
            children = most + (settings.gateways if settings.gateways > 1 else 0)
            descriptors = Descriptors.plan(raise_limit(), children, MAX_CONNECTIONS if settings.listen_workers else 0)
            _log.info("descriptors", limit=descriptors.limit, for_connections=descriptors.first_kept)
            joins = RemoteJoin(settings, router.rejections, descriptors) if settings.listen_workers else None
            listeners = _take_ports(settings, tls, joins) if predecessor is None else None
            async with ActorSystem() as system:
                routes = system.spawn("router", router)
                limits = deadlines or Deadlines(hang=settings.hang_timeout_s)
                loader = system.spawn("models", ModelLoader(router, models, memory_budget))
                fleet = Fleet(
                    router,
                    routes,
                    workers,
                    on_status=on_status,
                    policy=policy,
                    deadlines=limits,
                    models=loader,
                    on_removed=joins.forget if joins is not None else lambda worker: None,
                )
                daemon = _Daemon(
                    settings,
                    router,
                    fleet,
                    loader,
                    descriptors,
                    keys=keys,
                    tls=tls,
                    joins=joins,
                    predecessor=predecessor,
                    manager=manager,
                    responses=responses,
                    traces=traces,
                    sharing=sharing,
                    on_listening=on_listening,
                    fetch_adapter=fetch_adapter,
                )
                if listeners is not None:
                    daemon.use(listeners)
                end = await system.spawn("gateway", daemon, on_failure=OnFailure.STOP).wait_stopped()
            if (error := end.error or daemon.problem) is not None:
                raise error
            if daemon.reasons:
                raise WorkersGaveUp("; ".join(daemon.reasons))


def _take_ports(settings: GatewaySettings, tls: Tls | None, joins: RemoteJoin | None) -> Listeners:
    """All, or none. Raises `BindError`."""
    listeners = listen_on_all(settings, tls)
    if joins is not None:
        try:
            joins.listen()
        except BindError:
            listeners.close()
            raise
    return listeners


class SignalReceived(Struct, frozen=True):
    """An operator of this machine asks for the end."""


class ServerEnded(Struct, frozen=True):
    """No more connections are served: as it should be, or because another gateway's place could not be taken."""

    problem: TakeOverFailed | None = None


DaemonMessage = SignalReceived | ServerEnded | SuccessorListens | FleetGaveUp | Terminated


class _Daemon(Actor[DaemonMessage]):
    """Supervises the fleet, and owns the order of the end: no admissions, streams, server, workers."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        fleet: Fleet,
        models: Ref[LoaderMessage],
        descriptors: Descriptors,
        *,
        keys: ApiKeys,
        tls: Tls | None,
        joins: RemoteJoin | None,
        predecessor: Predecessor | None,
        manager: ServiceManager,
        responses: ResponseService,
        traces: "OtlpTraces | None",
        sharing: Sharing | None,
        on_listening: Callable[[str, int], None] | None,
        fetch_adapter: FetchAdapter | None,
    ) -> None:
        self.problem: TakeOverFailed | None = None
        self.reasons: tuple[str, ...] = ()
        """The reasons why the workers were given up, if that ends the gateway."""
        self._settings = settings
        self._router = router
        self._supervised = fleet
        self._models = models
        self._joins = joins
        self._descriptors = descriptors
        self._fetch_adapter = fetch_adapter
        self._on_listening = on_listening
        self._predecessor = predecessor
        self._keys = keys
        self._tls = tls
        self._manager = manager
        self._responses = responses
        self._traces = traces
        self._sharing = sharing
        self._records = None if sharing is None else sharing.streams
        self._streams = ResumableStreams(settings, router.metrics, self._records)
        self._listeners: Listeners | None = None
        self._handing_over = False
        self._leaving = anyio.Event()
        self._asked = anyio.Event()
        """An operator asked for the end, with a signal."""
        self._hurry = anyio.Event()
        self._shutdown = anyio.Event()
        self._server_ended = anyio.Event()
        self._over = anyio.Event()

    def started(self) -> None:
        self._fleet = self.context.spawn("fleet", self._supervised)
        self._fleet.watch(self.context.ref, FleetGaveUp)
        self.context.start_soon(self._watch_signals)
        self.context.start_soon(self._manager.keep_alive)
        lag = LoopLag()
        self.context.start_soon(lag.run)
        self._router.metrics.watch_loop(lag.longest)
        self.context.start_soon(collect_when_idle, lambda: self._router.is_idle)
        if self._joins is not None:
            self.context.start_soon(self._joins.run, self._fleet)
        if self._sharing is not None:
            limits, records = self._sharing
            self._router.metrics.watch_limits(lambda: limits.shared)
            self._router.metrics.watch_records(lambda: records.count)
            self.context.start_soon(limits.run)
            self.context.start_soon(records.run)
        self.context.start_soon(self._responses.background.run)
        self.context.start_soon(self._run_server)

    def handle(self, message: DaemonMessage) -> None:
        """Each message is a reason to leave; the first one begins the end."""
        match message:
            case SignalReceived():
                if self._asked.is_set() or (self._leaving.is_set() and not self._handing_over):
                    self._hurry.set()
                self._asked.set()
            case SuccessorListens():
                _log.info("hands_over")
                self._handing_over = True
            case FleetGaveUp(reasons):
                _log.info("workers_gave_up", reasons=reasons)
                if not self._leaving.is_set():
                    self.reasons = reasons
            case ServerEnded(problem):
                self.problem = problem or self.problem
                self._server_ended.set()
            case Terminated():
                return
        if not self._leaving.is_set():
            self._leaving.set()
            self.context.start_soon(self._end)

    def use(self, listeners: Listeners) -> None:
        """Serve on these sockets, and announce the address of the first."""
        metrics = self._router.metrics
        if self._settings.gateways > 1:
            listeners = FrontedListeners(listeners, self._spawn, metrics)
        self._listeners = listeners
        listeners.keep_from(self._descriptors.first_kept, metrics.connections_refused.inc)
        metrics.watch_connections(lambda: listeners.connections)
        host, port = listeners.address
        if self._on_listening is not None:
            self._on_listening(host, port)
        unix = listeners.unix
        _log.info("listening", host=host, port=port, unix_socket=str(unix.path) if unix is not None else "")

    def _spawn(self, name: str, actor: Actor[M]) -> Ref[M]:
        return self.context.spawn(name, actor)

    async def _watch_signals(self) -> None:
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
            wanted.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*wanted) as signals:
            async for number in signals:
                _log.info("signal", name=signal.Signals(number).name)
                self.context.ref.tell(SignalReceived(), urgent=True)

    async def _run_server(self) -> None:
        try:
            if self._predecessor is not None:
                listeners = await take_over(self._predecessor, self._settings, self._tls, self._fleet, self._leaving)
                if listeners is not None:
                    self.use(listeners)
            if self._listeners is not None:
                await self._serve(self._listeners)
            self.context.ref.tell(ServerEnded())
        except TakeOverFailed as problem:
            _log.error("not_taken_over", problem=str(problem))
            self.context.ref.tell(ServerEnded(problem))

    async def _serve(self, listeners: Listeners) -> None:
        settings = self._settings
        hand_over = HandOver(listeners, self.context.ref)
        app = create_app(
            self._router,
            settings,
            self._fleet,
            self._streams,
            self._predecessor,
            keys=self._keys,
            responses=self._responses,
            traces=self._traces,
            tls=self._tls,
            models=self._models,
            joins=self._joins,
            retired=lambda: listeners.first.retired,
            records=self._records,
            fetch_adapter=self._fetch_adapter,
        )
        async with anyio.create_task_group() as group:
            group.start_soon(hand_over.run, app, settings, self._over)
            if self._predecessor is not None:
                group.start_soon(self._relieve, self._predecessor, listeners)
            await listeners.serve(app, settings, shutdown=self._shutdown, grace_s=self._grace_s)
            self.context.ref.tell(ServerEnded())
            await self._over.wait()
            group.cancel_scope.cancel()

    async def _relieve(self, predecessor: Predecessor, listeners: Listeners) -> None:
        if await predecessor.relieve():
            listeners.own_files()

    def _grace_s(self) -> float:
        """The grace period of connections when the server ends. A gateway that hands over gives each accepted request
        its full time."""
        settings = self._settings
        return settings.flush_s + (self._longest_s if self._handing_over else 0.0)

    @property
    def _longest_s(self) -> float:
        """No request lasts longer."""
        settings = self._settings
        return settings.body_timeout_s + settings.request_timeout_s + DEADLINE_MARGIN_S + 2 * settings.client_stall_s

    async def _end(self) -> None:
        """Each step is bounded."""
        router, settings = self._router, self._settings
        self._fleet.tell(EndOperations(), urgent=True)
        if self._joins is not None:
            self._joins.shut()
        if self._handing_over:
            self._manager.hands_over()
        else:
            self._manager.stopping()
            router.admission.drain_nowait()
            if self._listeners is not None:
                self._listeners.retire(within_s=settings.shutdown_grace_s * WARNED)
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_grace, group.cancel_scope)
            if self._handing_over:
                group.start_soon(self._cut_hand_over, group.cancel_scope)
                await self._finish()
            else:
                await self._grace()
            group.cancel_scope.cancel()
        router.admission.drain_nowait()
        self._streams.leave()
        router.ends.fail_all("the gateway is shutting down")
        self._shutdown.set()
        with anyio.move_on_after(settings.flush_s + 1):
            await self._responses.background.idle()
            await self._server_ended.wait()
        self._streams.close()
        await self._stop_workers()
        self._over.set()
        _log.info("ended")
        self.context.ref.stop()

    async def _stop_workers(self) -> None:
        try:
            await self._fleet.ask(StopAll, timeout=WORKERS_END_S)
        except (
            AskTimeout,
            AskFailed,
            ActorStopped,
            MailboxFull,
            TooManyAsks,
        ) as error:  # the end of the fleet kills them
            _log.error("workers_have_not_ended", within_s=WORKERS_END_S, reason=f"{type(error).__name__}: {error}")

    async def _finish(self) -> None:
        """Serve what has been accepted, to its end. First connections may go by themselves: each one ends with its next
        answer, or one of HTTP/2 when it has nothing under way, or after `keep_alive_s`. Then the server ends those that
        never do. Last, what is kept for clients that come back needs no workers any more; they get it through the other
        gateway."""
        settings = self._settings
        if self._listeners is not None:
            self._listeners.stop()
            with anyio.move_on_after(settings.keep_alive_s):
                while self._listeners.connections:  # noqa: ASYNC110  sockets do not tell
                    await anyio.sleep(POLL_S)
        self._shutdown.set()
        with anyio.move_on_after(self._longest_s + settings.flush_s + 2):
            await self._server_ended.wait()
        with anyio.move_on_after(self._longest_s):
            await self._router.idle()
        await self._stop_workers()
        with anyio.move_on_after(settings.max_resume_s + self._longest_s):
            await self._streams.none_left()
            if self._predecessor is not None:  # whose streams the next gateway reaches through this one
                await self._predecessor.gone()

    async def _grace(self) -> None:
        """The time that what is live has in an ordinary shutdown."""
        with anyio.move_on_after(self._settings.shutdown_grace_s):
            await self._router.idle()
            await self._streams.settled()

    async def _cut_hand_over(self, scope: anyio.CancelScope) -> None:
        """A signal makes an ordinary shutdown of a hand-over."""
        await self._asked.wait()
        self._manager.stopping()
        self._router.admission.drain_nowait()
        await self._grace()
        scope.cancel()

    async def _cut_grace(self, scope: anyio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()
