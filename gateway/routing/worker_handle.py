"""The router's handle of one worker: its status, its counters, and its live sequences."""

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable, Iterable
from enum import StrEnum

from actors.supervision.worker import WorkerState, WorkerStatus, WorkerUnavailable
from actors.supervision.worker_actor import WorkerRef
from gateway.body_budget import HeldBody
from gateway.metrics.metrics import Metrics
from gateway.metrics.samples import Observed, WorkerSample
from gateway.routing.adapters.registry import is_version
from gateway.routing.circuit_breaker import Breaker, Circuit
from gateway.routing.counters import Counters
from gateway.routing.failure import FailureId
from gateway.routing.failure_attribution import Exemptions, suspect
from gateway.routing.sequence import LiveSequence
from protocol.bounds import MAX_FRAMES_PER_MESSAGE
from protocol.commands import Cancel, Submit
from protocol.events import SILENT_S, Capabilities, Hello, Phases
from protocol.scheduling import ahead

CANCEL_RETRY_S = 0.02
FULL_S = 0.25
"""Time until a worker that had no room for what another one lost is asked again, or until something ends on it."""
STALLS = 4
"""As many stalls as `WorkerHandle.stalled` sees make a hang."""


DISTRUST_S = 300.0
"""Time for which a worker that sent what it was not asked for is given requests after all others."""
BACKENDS = frozenset({"iree", "mlx", "scripted"})
"""Backends that have series of their own. A worker of another machine may report any name."""
OTHER_BACKEND = "other"


class Role(StrEnum):
    """The role of a worker: it is given requests, or is kept ready to be."""

    ACTIVE = "active"
    STANDBY = "standby"


class WorkerHandle:
    """The handle of one worker. `live` has its sequences by number, in the order in which the worker got them."""

    def __init__(
        self, worker: WorkerRef, name: str, model: str, metrics: Metrics, role: Role = Role.ACTIVE, *, most: int
    ) -> None:
        """It may have `most` sequences."""
        self.worker = worker
        self.name = name
        self.model = model
        self.role = role
        """Changed by the worker pool alone."""
        self.on_change: Callable[[WorkerHandle], None] = lambda handle: None
        """Called when its load or its state has changed. Set by the worker pool."""
        self._most = most
        self.promotions = 0
        """Times that it was made active."""
        self.breaker = Breaker()
        self.exemptions = Exemptions()
        self.incarnation = worker.status.incarnation
        self.counters = Counters()
        self.live: dict[int, LiveSequence] = {}
        self.slots = 0
        """Slots of the worker that is there or was there last."""
        self.reached = 0
        """See `Gauges.reached`."""
        self.others = 0
        """Sequences of other gateways; see `note_others`."""
        self.shared = False
        """It serves other gateways, too."""
        self.phases: Phases = "both"
        """See `Hello.phases`."""
        self.capabilities: Capabilities | None = None
        """Those that the worker had when it was ready last; None before."""
        self.adapters: tuple[str, ...] = ()
        """Those that its requests may name, likewise."""
        self.loaded_adapters: set[str] = set()
        """Those that this incarnation has loaded at run time, by their names on workers. Changed by `AdapterLoads`
        alone."""
        self.prefix_digests: Callable[[], int] = lambda: 0
        """Counts the digests of prefixes that it holds. Set by `PrefixRouting`."""
        self.prefixes = (0, 0)
        """Prefixes that it holds, and the number of its last turn: of equally loaded workers the one with the fewest
        gets a request, and of these the one that got one least recently. Set by `PrefixRouting`."""
        self.steps_failed = 0
        """Those of this incarnation, as of the notices so far: `status` may be of later frames of the same message."""
        self.last_used = 0.0
        """The time at which a request on it ended last; 0: none has."""
        self._closed = -1
        self._distrusted_until = 0.0
        self._full_until = 0.0
        self._uncancelled: list[Cancel] = []
        self._unanswered: dict[int, HeldBody] = {}
        self._retry: TimerHandle | None = None
        self._metrics = metrics
        self._backend = "unknown"
        self.observed: Observed = metrics.of(model, self._backend, name)
        self.refresh(worker.status)

    @property
    def status(self) -> WorkerStatus:
        """The worker's status, now."""
        return self.worker.status

    @property
    def backend(self) -> str:
        """The backend that the worker reported, one of a closed set; kept while it restarts, so that its series
        continue."""
        return self._backend

    @property
    def load(self) -> int:
        """Sequences on the worker, those of other gateways included."""
        return len(self.live) + self.others

    @property
    def ready(self) -> bool:
        """The worker takes requests."""
        status = self.worker.status
        return status.state is WorkerState.READY and status.incarnation == self.incarnation != self._closed

    @property
    def kind(self) -> tuple[str, str]:
        """Backend and config digest: workers of one kind compute the same tokens."""
        hello = self.worker.status.hello
        return (hello.backend, hello.config_digest) if hello is not None else ("", "")

    @property
    def prefills(self) -> bool:
        """It is there for long prompts: it gets other requests after all workers with as much room, and its streams go
        on with these."""
        return self.phases == "prefill"

    @property
    def rows_format(self) -> str:
        """The format of the cache rows that it gives to others and takes of them; empty if it does not."""
        ready = self.worker.status.ready
        return "" if ready is None else ready.rows_format

    def shares_rows(self, other: "WorkerHandle") -> bool:
        """The other one can go on with the cache rows that this one has computed, and computes the same tokens."""
        return self.rows_format != "" and self.rows_format == other.rows_format and self.kind == other.kind

    @property
    def room(self) -> int:
        """The sequences that it may have: one for each slot, and some for the slots that become free next. The others
        wait in the queue, where their order can still change."""
        return min(self._most, self.slots + ahead(self.slots))

    def has_adapter(self, adapter: str) -> bool:
        """It can compute sequences with this adapter, or without one."""
        return adapter in self.loaded_adapters or not is_version(adapter) or adapter in self.adapters

    def close(self) -> None:
        """This incarnation gets no more requests."""
        self._closed = self.incarnation
        self.on_change(self)

    def full(self, now: float) -> bool:
        """It refused something lately, and nothing has ended on it since."""
        return now < self._full_until

    def refused(self, now: float) -> None:
        """It had no room: leave it alone for a while."""
        self._full_until = now + FULL_S

    @property
    def tries_suspect(self) -> bool:
        """One of its sequences is a suspect: the worker may die of it, and the others would see a gap."""
        return any(suspect(sequence) for sequence in self.live.values() if sequence.failures)  # few have any

    def place(self, sequence: LiveSequence, submit: Submit) -> None:
        """The worker was sent a sequence under this number. It may have its body in a queue until it has answered, also
        when the sequence is cancelled meanwhile."""
        self.live[submit.stream] = sequence
        self._unanswered[submit.stream] = sequence.request.body.need()
        self.on_change(self)

    def answered(self, number: int) -> None:
        """The worker is done with a sequence of this number, if it was sent one."""
        if (body := self._unanswered.pop(number, None)) is not None:
            body.release()

    def remove(self, sequence: LiveSequence) -> None:
        """A sequence is not the worker's any more; that may make room."""
        self.drop(sequence)
        self._full_until = 0.0

    def drop(self, sequence: LiveSequence) -> None:
        """A sequence that had no room here, or whose removal failed, is not the worker's any more."""
        self.live.pop(sequence.submit.stream, None)
        self.on_change(self)

    def lose_all(self) -> list[LiveSequence]:
        """None of its sequences is the worker's any more, and this incarnation gets no others."""
        sequences = list(self.live.values())
        self.live.clear()
        self.close()
        self.on_change(self)
        return sequences

    @property
    def failed_step(self) -> FailureId:
        """The last of its steps that failed; all rows of one fail together."""
        return self.incarnation, self.steps_failed

    def exempt(self, failure: FailureId) -> None:
        """Do not count a failure that was attributed to a request, unless too many in a row were."""
        if not self.exemptions.add(failure):
            return
        incarnation, step = failure
        if step is None:
            self.worker.exempt_nowait(incarnation)
        else:
            self.breaker.exempt(failure)

    def fit(self, now: float) -> bool:
        """The worker can serve: it takes requests, and they do not keep failing. `now` is the loop's time."""
        return self.ready and self.breaker.state(now) is not Circuit.OPEN

    def silent(self, now: float) -> bool:
        """The worker has missed its heartbeats and may be dead: others are given requests before it.
        `now` is the loop's time."""
        return now - self.worker.status.last_frame >= SILENT_S

    def stalled(self, now: float) -> bool:
        """The worker has work and has finished no step for a good part of the time after which that is a hang: twice
        its longest step at least. `now` is the loop's time."""
        status = self.worker.status
        return bool(self.live) and 0 < status.hang_s <= STALLS * (now - status.last_progress)

    def doubtful(self, now: float) -> bool:
        """The worker may be lost soon, or may just be slow: others are given requests before it."""
        return now < self._distrusted_until or self.silent(now) or self.stalled(now)

    def distrust(self, now: float) -> None:
        """It sent what it was not asked for, and may do so again."""
        self._distrusted_until = now + DISTRUST_S

    def usefulness(self, now: float) -> int:
        """0 for a worker that cannot serve, 1 for one that may be lost soon, 2 for others."""
        if not self.fit(now):
            return 0
        return 1 if self.doubtful(now) else 2

    def admits(self, now: float) -> bool:
        """The worker may be given a request now."""
        return self.role is Role.ACTIVE and self.ready and self.breaker.allows(now, len(self.live))

    def progressing(self, now: float, timeout_s: float) -> bool:
        """The worker can serve and lately showed that it gets on with what it has. `now` is the loop's time."""
        return self.fit(now) and now - self.worker.status.last_progress < timeout_s

    def refresh(self, status: WorkerStatus) -> None:
        """Take over what a status says: the counts, and the labels once they are known."""
        self.counters.add(status.incarnation, status.gauges)
        self.others = status.gauges.others
        if status.ready is not None:
            self.capabilities, self.adapters = status.ready.capabilities, status.ready.adapters
        if status.hello is not None:
            self._take_hello(status.hello)
        self.on_change(self)

    def note_others(self, count: int) -> None:
        """Note how many sequences of other gateways the worker has."""
        if count != self.others:
            self.others = count
            self.on_change(self)

    def _take_hello(self, hello: Hello) -> None:
        self.slots, self.shared, self.phases = hello.slots, hello.gateways > 1, hello.phases
        backend = hello.backend if hello.backend in BACKENDS else OTHER_BACKEND
        if backend != self._backend:
            self._backend = backend
            self.observed = self._metrics.of(self.model, self._backend, self.name)

    def cancel(self, sequences: Iterable[LiveSequence]) -> None:
        """Post a cancel for each. A full link must not lose one, or a slot would compute for nobody: they go again."""
        self._uncancelled.extend(Cancel(sequence.submit.stream) for sequence in sequences)
        if self._retry is None:
            self._post_cancels()

    def forget(self) -> None:
        """The incarnation is gone, and with it what was on its way there."""
        self._uncancelled.clear()
        while self._unanswered:
            self._unanswered.popitem()[1].release()

    def _post_cancels(self) -> None:
        self._retry = None
        while batch := self._uncancelled[:MAX_FRAMES_PER_MESSAGE]:
            try:
                self.worker.send_nowait(batch)
            except WorkerUnavailable:
                self._retry = asyncio.get_running_loop().call_later(CANCEL_RETRY_S, self._post_cancels)
                return
            del self._uncancelled[: len(batch)]

    def sample(self) -> WorkerSample:
        """The worker, for a scrape."""
        status = self.worker.status
        self.refresh(status)
        ready, hello = self.ready, status.hello
        active = self.role is Role.ACTIVE
        free = hello.slots - status.gauges.slots_active if ready and active and hello is not None else 0
        return WorkerSample(
            model=self.model,
            backend=self._backend,
            worker=self.name,
            counts=self.counters.total,
            slots_available=max(0, free),
            queue_depth=status.gauges.queue_depth,
            kv_tokens=status.gauges.kv_tokens,
            kv_capacity=status.ready.kv_capacity if status.ready is not None else 0,
            memory_bytes=status.gauges.memory_bytes,
            retained_tokens=status.gauges.retained_tokens,
            stored_bytes=status.gauges.stored_bytes,
            state_cache_bytes=status.gauges.state_cache_bytes,
            image_cache_bytes=status.gauges.image_cache_bytes,
            prefix_digests=self.prefix_digests(),
            live=len(self.live),
            ready=ready,
            restarts=status.restarts,
            standby=not active,
            phases=self.phases,
            promotions=self.promotions,
            circuit_open=self.breaker.state(asyncio.get_running_loop().time()) is not Circuit.CLOSED,
        )
