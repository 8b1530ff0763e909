"""Routes the sequences of requests to workers, whose notices it takes."""

import asyncio
from collections.abc import Callable, Container, Iterable
from random import Random

from actors.actor import Actor, Terminated
from actors.process.exit_cause import Origin
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerNotice,
    WorkerState,
    WorkerStatus,
)
from actors.supervision.worker_actor import WorkerRef
from actors.transport.rejections import Rejections
from gateway.answer_budget import AnswerBudget
from gateway.body_budget import BodyBudget
from gateway.errors import RequestError
from gateway.metrics.metrics import Metrics
from gateway.routing.adapters.loads import AdapterLoads
from gateway.routing.admission.request_admission import RequestAdmission
from gateway.routing.circuit_breaker import Breaker
from gateway.routing.delivery import Delivery
from gateway.routing.failure import Cause
from gateway.routing.model_catalog import Activity
from gateway.routing.named_models import NamedModels
from gateway.routing.placement.placement import Placement
from gateway.routing.placement.request_ends import RequestEnds
from gateway.routing.placement.row_transfers import RowTransfers
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.prompt_queries import PromptQueries
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import Role, WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.events import AdapterChanged, Event, Rows, RowsWritten, Tokenized
from protocol.scheduling import PriorityClass

LAST_MOVES_S = 3.0
"""Time beyond the grace of a draining worker in which sequences are moved with their cache rows."""
CHECK_MOVES_S = 0.1
"""A pause before it is checked again whether such sequences are left."""

_CAUSES = {Origin.OUTSIDE: Cause.KILLED, Origin.MISBEHAVED: Cause.MISBEHAVED}
"""Origins of a loss that no request that ran is the cause of."""


class Router(Actor[WorkerNotice | Terminated]):
    """Places the sequences of requests, and delivers to each what its worker reports. Synchronous, on one event loop.

    It watches the workers: their notices are its messages. A sequence is released exactly once: at its terminal event,
    when no worker can continue it, or when its client cancels it, whichever comes first.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        class_weight: Callable[[str], float] = lambda _: 1.0,
        class_of: Callable[[str], PriorityClass] = lambda _: "normal",
        chance: Random | None = None,
    ) -> None:
        """`class_weight` returns the weight of a client by its name, where the settings have none, and `class_of` its
        priority class: see `ApiKeys`. `chance` makes the choice among shared workers repeatable."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self.pool = WorkerPool(self._clock, chance)
        self.models = NamedModels(self.pool, self._clock)
        self.rejections = Rejections()
        """Rejections by the links to the workers."""
        self.bodies = BodyBudget(settings.max_total_body_bytes, settings.retry_after_s)
        self.metrics = Metrics(self.pool.samples, self.waiting, lambda: self.rejections.total, settings.metrics_names)
        self.metrics.watch_bodies(lambda: self.bodies.held)
        self.answers = AnswerBudget(settings.max_total_answer_bytes, settings.max_answer_bytes)
        self.metrics.watch_answers(lambda: self.answers.held)
        self._placement = Placement(
            settings, self.pool, self.metrics, lambda each, failure: self.ends.fail(each, failure), class_weight
        )
        self.ends = RequestEnds(self.pool, self._placement, self.metrics)
        self._transfers = RowTransfers(self.pool, self._placement, self.metrics)
        self._delivery = Delivery(self.pool, self._placement, self._clock, self.ends.fail, self._transfers.begun)
        self.adapters = AdapterLoads(
            self.pool, self._placement.live, self.model_changed, self.ends.fail, self.metrics.forget_adapter
        )
        self.metrics.watch_adapters(self.adapters.samples)
        self._queries = PromptQueries(self.pool, self._placement, self._error, settings.worker_wait_s)
        self.admission = RequestAdmission(
            settings,
            self.pool,
            self.models,
            self._placement,
            self.ends,
            self._queries,
            self.metrics,
            self.bodies,
            self.answers,
            class_of,
            self._error,
        )

    def add(self, worker: WorkerRef, name: str, model: str, role: Role = Role.ACTIVE) -> None:
        """Let a worker serve a model. Its name is the one in its events. Raises `ValueError` for a name twice."""
        most = self._settings.max_streams_per_worker
        handle = WorkerHandle(worker, name, model, self.metrics, role, most=most)
        self.pool.add(handle)
        self._placement.routing.add(handle)

    def remove(self, worker: str) -> None:
        """Forget a worker that has ended. Raises `ValueError` while it has live sequences, and for an active one that
        may come back."""
        handle = self.pool[worker]
        if handle.live or (handle.role is Role.ACTIVE and handle.status.running):
            raise ValueError(f"worker {worker!r} is in use")
        self.pool.remove(worker)
        self._transfers.lost(handle)
        self._placement.routing.forget(handle)
        self.adapters.lost(handle)
        self.metrics.forget(worker)

    # Models that are loaded and unloaded.

    def watch_activity(self, stirred: Callable[[], None]) -> None:
        """Set the function that is called when a model has become idle, or when requests begin or cease to wait for one
        that does not serve them. It must do nothing but take note."""
        self._placement.stirred = stirred

    def activity(self, model: str, workers: Container[str]) -> Activity:
        """Count the requests of a model that these of its workers have, and those that no worker has."""
        sequences, queries = self._placement.activity(model, workers), self._queries.activity(model, workers)
        return Activity(sequences.live + queries.live, sequences.waiting + queries.waiting, sequences.last_used)

    def retire(self, workers: Iterable[str]) -> None:
        """Give these workers, which have no sequences, none until their next incarnation."""
        for worker in workers:
            self.pool[worker].close()

    def model_changed(self, model: str) -> None:
        """Let what waits for a model go on, or end, after its entry in the catalog has changed."""
        self._placement.serve(model)
        self._queries.model_changed()

    # Notices of workers.

    def handle(self, message: WorkerNotice | Terminated) -> None:
        """Takes effect at once: what is lost goes to other workers before this returns."""
        match message:
            case WorkerEvent(worker, incarnation, event):
                self.worker_event(worker, incarnation, event)
            case WorkerChanged(status):
                self.worker_changed(status)
            case IncarnationLost():
                self.worker_lost(message)
            case GraceEnded(worker, incarnation):
                if incarnation == self.pool[worker].incarnation:
                    self._end_grace(self.pool[worker])
            case Terminated(worker):
                if self.pool.find(worker) is not None:  # its supervision has failed
                    self.migrate(worker)

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """Handle an event of a worker, unless it is of an earlier incarnation."""
        handle = self.pool[worker]
        if incarnation != handle.incarnation:
            return
        if isinstance(event, Tokenized):
            self._queries.answered(event)
        elif isinstance(event, Rows | RowsWritten):
            self._transfers.take(handle, event)
        elif isinstance(event, AdapterChanged):
            self.adapters.take(handle, event)
        else:
            self._delivery.take(handle, event)

    def worker_changed(self, status: WorkerStatus) -> None:
        """A worker started, got on with loading, became ready, or is no longer."""
        handle = self.pool[status.name]
        if status.incarnation != handle.incarnation:
            handle.forget()
            self._queries.lost(handle.name)
            self._transfers.lost(handle)
            self.adapters.lost(handle)
            self._placement.lose(handle, Cause.DIED, f"worker {handle.name} was replaced")
            handle.incarnation = status.incarnation
            handle.breaker = Breaker()
        handle.steps_failed = status.gauges.steps_failed
        handle.refresh(status)
        self._placement.routing.described(handle)
        self.adapters.changed(handle)
        self.pool.promote(handle.model)
        self._placement.serve(handle.model)
        self._queries.model_changed()
        if status.state is WorkerState.DRAINING:
            self._transfers.drain(handle)

    def worker_lost(self, lost: IncarnationLost) -> None:
        """An incarnation is gone; what it held goes on elsewhere."""
        handle = self.pool[lost.worker]
        if lost.incarnation == handle.incarnation:
            if lost.origin is Origin.MISBEHAVED:
                handle.distrust(self._clock())
            cause = _CAUSES.get(lost.origin, Cause.DIED)
            handle.forget()
            self._queries.lost(handle.name)
            self._transfers.lost(handle)
            self.adapters.lost(handle)
            reason = f"worker {lost.worker} was lost: {lost.reason}"
            self._placement.lose(handle, Cause.LEFT if lost.asked else cause, reason)

    def _end_grace(self, handle: WorkerHandle) -> None:
        """Migrate what a draining worker has, when no sequence is moved with its rows any more."""
        self._migrate_left(handle, handle.incarnation, self._loop.time() + LAST_MOVES_S)

    def _migrate_left(self, handle: WorkerHandle, incarnation: int, until: float) -> None:
        if handle.incarnation != incarnation or self.pool.find(handle.name) is not handle:
            return
        if self._transfers.moves(handle) and self._loop.time() < until:
            self._loop.call_later(CHECK_MOVES_S, self._migrate_left, handle, incarnation, until)
        else:
            self.migrate(handle.name)

    def migrate(self, worker: str) -> None:
        """Take every live sequence off a worker, which gets nothing more until its next incarnation. They go on with
        other workers of the model, or wait for one."""
        handle = self.pool[worker]
        self._transfers.lost(handle)
        handle.cancel(list(handle.live.values()))
        self._placement.lose(handle, Cause.MOVED, f"worker {worker} was to be free")

    @property
    def queue(self) -> WaitQueue:
        """The queue of requests, which keeps the shares of clients."""
        return self._placement.queue

    @property
    def is_idle(self) -> bool:
        """No sequence is live: none is on a worker, in the queue, or on its way there."""
        return self._placement.idle.is_set()

    async def idle(self) -> None:
        """Wait until no sequence is live."""
        # One that has ended may have been followed by another of its request before this continues.
        while not self._placement.idle.is_set():
            await self._placement.idle.wait()

    # State that others read.

    def sequences(self) -> list[LiveSequence]:
        """All live sequences, those on workers first; to be read only."""
        return self._placement.live()

    def waiting(self) -> dict[str, int]:
        """Count the sequences that wait for a worker, by model."""
        return {model: self._placement.queue.count(model) for model in self.pool.models()}

    def _error(self, code: ErrorCode, text: str) -> RequestError:
        return RequestError(code, text, retry_after_s=self._settings.retry_after_s)
