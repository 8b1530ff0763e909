"""Places each sequence on a worker, or in the queue; a sequence that loses its worker continues on another one."""

import asyncio
import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

import structlog

from actors.supervision.worker import WorkerUnavailable
from gateway.key_weights import key_of_client, parse_weights
from gateway.metrics.metrics import Metrics
from gateway.routing.failure import Cause, RequestFailure, WorkerFailure
from gateway.routing.failure_attribution import attribute_death, attribute_step, attributed_failures, may_run, suspect
from gateway.routing.model_catalog import Activity
from gateway.routing.placement.begun_sequences import begun_sequences
from gateway.routing.placement.charges import Charges
from gateway.routing.placement.load_order import Rank
from gateway.routing.placement.lost_sequences import LostSequences
from gateway.routing.placement.preemption import Preemption
from gateway.routing.placement.prefill_choice import PrefillChoice
from gateway.routing.placement.turn_budget import TurnBudget
from gateway.routing.placement.wait_ends import WaitEnds
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.prefixes.prefix_routing import PrefixRouting
from gateway.routing.quarantine import Quarantine
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import FULL_S, WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode

SENT_AT_ONCE = 300
"""Waiting sequences that are sent to workers in one turn, which takes 10 to 30 ms."""
SERVED_BYTES = 16 * 1024 * 1024
"""Bytes of bodies that are sent to workers in one turn when waiting sequences are served."""

_log = structlog.get_logger("gateway.routing.placement")


class Placement:
    """Owns the live sequences of each worker, the wait queue, and every move between them. Synchronous.

    A live sequence is in one place: in `live` of one worker handle, in the queue, or lost, which means on its way from
    the one to the other. `fail` is called for a sequence that cannot continue, after which it is in none of them.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        pool: WorkerPool,
        metrics: Metrics,
        fail: Callable[[LiveSequence, RequestFailure], None],
        weight: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        """`weight` returns that of a client's key by its name, where the settings have none."""
        weights = parse_weights(settings.key_weights)
        self.queue = WaitQueue(
            settings.max_waiting_streams,
            settings.worker_wait_s,
            lambda sequence: self.wait_ends.overdue(sequence),
            policy=settings.scheduler_policy,
            weight=lambda client: weights.get(name := key_of_client(client)) or weight(name),
        )
        self.charges = Charges(self.queue, settings)
        self.wait_ends = WaitEnds(pool, self.queue, self.charges, fail)
        self.idle = asyncio.Event()
        """No sequence is live."""
        self.idle.set()
        self.stirred: Callable[[], None] = lambda: None
        """Called when a worker may have no more sequences, or when sequences begin or cease to wait for a
        model that does not serve them now. May be called inside any method."""
        self._last_waited: dict[str, float] = {}
        """The time at which a request of each model ended last that was on no worker."""
        self._settings = settings
        self._pool = pool
        self._metrics = metrics
        self._fail = fail
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.quarantine = Quarantine(self._loop.time)
        self.routing = PrefixRouting(settings.routing, metrics, pool)
        self._prefill = PrefillChoice(self.routing, pool, settings.long_prompt_tokens)
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._lost = LostSequences(self.serve)
        self._sends = TurnBudget(SENT_AT_ONCE)
        self._preemption = Preemption(pool, self.queue, self._loop.time, settings.max_streams_per_worker)

    def live(self) -> list[LiveSequence]:
        """All live sequences."""
        on_workers = itertools.chain.from_iterable(handle.live.values() for handle in self._pool)
        return [*on_workers, *self.queue, *self._lost]

    def has(self, sequence: LiveSequence) -> bool:
        """It is on a worker, in the queue, or on its way there."""
        handle = self._pool.find(sequence.worker)
        on_worker = handle is not None and handle.live.get(sequence.submit.stream) is sequence
        return on_worker or sequence in self.queue or sequence in self._lost

    def admit(self, model: str, sequences: Sequence[LiveSequence]) -> ErrorCode | None:
        """Place the sequences of a new request: all on one worker, in one message, or all in the queue while no worker
        has room or others wait already. They do not wait for sequences that they preempt on a worker. Returns why
        neither is possible, or None."""
        self._preemption.note(sequences[0].terms.urgency)
        held, adapter = self._pool.catalog.held(model), sequences[0].submit.adapter
        if not held and not self.queue.count(model):

            def has_room(handle: WorkerHandle) -> bool:
                return len(handle.live) + len(sequences) <= handle.room and handle.has_adapter(adapter)

            with_room = filter(has_room, self._pool.candidates(model, worst=Rank.FULL))
            if any(self._send(handle, sequences) for handle in self._prefill.order(with_room, sequences[0], has_room)):
                return None
            # A full link, or a lost one that was not reported yet, is no reason to refuse the request.
        if not held and any(self._send(handle, sequences) for handle in self._preemption.for_new(model, sequences)):
            return None
        none = not held and next(self._pool.candidates(model), None) is None
        if none and not self.may_come(model):
            return ErrorCode.UNAVAILABLE
        if not self.queue.has_room(len(sequences)):
            displaced = self.queue.to_displace(sequences[0].terms.client, len(sequences))
            if displaced is None:
                return ErrorCode.OVERLOADED
            for sequence in displaced:
                self.wait_ends.displace(sequence)
        self._wait(sequences)
        self.serve(model)
        return None

    def admit_later(self, sequence: LiveSequence) -> None:
        """Place a sequence of a request whose first ones were admitted, or let it wait: in place of one that has
        ended, so that the bound on those that wait holds."""
        model = sequence.request.model
        if not self._pool.catalog.held(model) and not self.queue.count(model):
            handle = self._find_worker(sequence)
            if handle is not None and self._send(handle, [sequence]):
                return
        self._wait([sequence])
        self.serve(model)

    def most(self, model: str) -> int | None:
        """The most sequences of one request: all run on one worker, or all wait. None while the workers are unknown."""
        room = self._pool.room(model)
        return None if room is None else max(self._settings.max_waiting_streams, room)

    def remove(self, sequence: LiveSequence) -> None:
        """Remove a sequence that has ended, which may make room for others."""
        if sequence in self._lost:
            self._lost.remove(sequence)
        elif sequence.worker:
            self._take_off(self._pool[sequence.worker], sequence)
        elif sequence in self.queue:
            self.queue.remove(sequence)
        self._note_idle()
        model, handle = sequence.request.model, self._pool.find(sequence.worker)
        if handle is None:
            self._last_waited[model] = self._loop.time()
        else:
            handle.last_used = self._loop.time()
        if sequence.worker:
            self.serve(model)
        if not self.serves(model) or handle is None or not handle.live:
            self.stirred()

    def abandon(self, handle: WorkerHandle, sequence: LiveSequence) -> None:
        """Drop a sequence of a worker whose removal failed."""
        self._note_left(handle, sequence)
        handle.drop(sequence)
        self._note_idle()

    def _take_off(self, handle: WorkerHandle, sequence: LiveSequence) -> None:
        self._note_left(handle, sequence)
        handle.remove(sequence)

    def _note_left(self, handle: WorkerHandle, sequence: LiveSequence) -> None:
        self._preemption.remove(sequence)
        self.routing.left(handle, sequence)

    def _note_idle(self) -> None:
        if not (self.queue or self._lost) and self._pool.idle:
            self.idle.set()

    def lose(self, handle: WorkerHandle, cause: Cause, reason: str) -> None:
        """Take all sequences off a worker that is gone or has to leave. They continue on other workers."""
        for each in begun_sequences([*handle.live.values()], handle.slots, handle.reached):
            each.begun = True
        self.routing.lose(handle)
        sequences = handle.lose_all()
        for each in sequences:
            self._preemption.remove(each)
        if not sequences:
            self.serve(handle.model)
            return
        attributed = set(self._attribute_loss(handle, sequences, cause))
        _log.warning("streams_replayed", worker=handle.name, streams=len(sequences), cause=str(cause), reason=reason)
        self._lost.add(sequences, lambda each: self._move(each, cause, reason, attributed=each in attributed))

    def _move(self, sequence: LiveSequence, cause: Cause, reason: str, *, attributed: bool = False) -> None:
        """Put a sequence that lost its worker into the queue, or end it if the loss is attributed to it."""
        try:
            self.settle(sequence, "lost_again")
            sequence.leave(cause, reason, self._loop.time())
            if attributed:
                self._quarantine(sequence, reason)
            else:
                self._wait([sequence])
        except Exception as error:  # noqa: BLE001  the others continue all the same
            _log.error("replay_failed", request=sequence.request.request_id, exc_info=error)
            sequence.worker = ""
            self._fail(sequence, RequestFailure(ErrorCode.LOST, f"{reason}, and it cannot be replayed"))

    def _quarantine(self, sequence: LiveSequence, reason: str) -> None:
        """End a sequence to which the losses of its workers are attributed."""
        self.quarantine.add(sequence.request.model, sequence.submit.input, sequence.submit.sampling)
        text = f"workers failed with this request {len(sequence.failures)} times in a row; {reason}"
        self._fail(sequence, RequestFailure(ErrorCode.QUARANTINED, text))

    def _attribute_loss(
        self, handle: WorkerHandle, sequences: Sequence[LiveSequence], cause: Cause
    ) -> list[LiveSequence]:
        """The sequences that the loss of a worker is attributed to. Their failures then do not count against
        workers."""
        if cause not in (Cause.DIED, Cause.KILLED, Cause.MISBEHAVED):
            return []
        death = WorkerFailure(handle.name, (handle.incarnation, None), within=cause is Cause.DIED)
        attributed = attribute_death(sequences, handle.slots, handle.reached, death)
        for sequence in attributed:
            self.exempt_workers(sequence)
        return attributed

    def attribute_step(self, handle: WorkerHandle, sequence: LiveSequence, code: ErrorCode) -> bool:
        """A step failed that the sequence was part of. True when it is attributed to the sequence, and then does not
        count against the worker."""
        failure = WorkerFailure(handle.name, handle.failed_step, of_worker=code is ErrorCode.STEP)
        attributed = attribute_step(sequence, failure)
        if attributed:
            self.exempt_workers(sequence)
        return attributed

    def exempt_workers(self, sequence: LiveSequence) -> None:
        """Do not count the failures of a sequence against its workers: they are attributed to it, or it ends before it
        is cleared."""
        for failure in attributed_failures(sequence):
            handle = self._pool.find(failure.worker)
            if handle is not None:
                handle.exempt(failure.failure)

    def suspend(self, sequence: LiveSequence, cause: Cause, reason: str) -> None:
        """Take one sequence off its worker, which lives on."""
        handle = self._pool[sequence.worker]
        begun = begun_sequences([*handle.live.values()], handle.slots, handle.reached)
        sequence.begun = sequence.begun or cause is Cause.STEP or sequence in begun
        self._take_off(handle, sequence)
        self._lost.add([sequence], lambda each: self._move(each, cause, reason))

    def has_slot(self, handle: WorkerHandle, sequence: LiveSequence) -> bool:
        """A worker would run this sequence at once."""
        full = handle.full(self._loop.time()) or handle.load >= handle.slots
        may = handle.has_adapter(sequence.submit.adapter) and may_run(sequence, handle.live, handle.slots)
        return not full and self._pool.admits(handle) and may

    def move(self, sequence: LiveSequence, target: WorkerHandle, reason: str) -> bool:
        """Let a running sequence continue on another worker. False, with nothing changed, if that has no slot for
        it."""
        if not self.has_slot(target, sequence):
            return False
        source = self._pool[sequence.worker]
        source.cancel([sequence])
        self._take_off(source, sequence)
        self.settle(sequence, "lost_again")
        sequence.begun = sequence.waited = True
        sequence.leave(Cause.MOVED, reason, self._loop.time())
        if not self._try(sequence, lambda each: self._send(target, [each])):
            self._wait([sequence])
        self.serve(source.model)
        self.stirred()
        return True

    def postpone(self, sequence: LiveSequence) -> None:
        """Return a sequence to the queue, as the worker that was to continue it had no room."""
        handle = self._pool[sequence.worker]
        self._take_off(handle, sequence)
        handle.refused(self._loop.time())
        sequence.worker = ""
        self._wait([sequence])
        self.serve(handle.model)

    def redirect(self, sequence: LiveSequence) -> bool:
        """Send a new sequence, for which its worker had no room, to one that may have room, unless others wait for
        that. False, with nothing changed, when there is none."""
        handle = self._pool[sequence.worker]
        handle.refused(self._loop.time())
        other = None if self.queue.count(handle.model) else self._find_worker(sequence)
        if other is None:
            return False
        self._note_left(handle, sequence)
        handle.drop(sequence)
        if not self._send(other, [sequence]):
            sequence.worker = ""
            self._wait([sequence])
            self.serve(handle.model)
        self.stirred()
        return True

    def serve(self, model: str) -> None:
        """Send waiting sequences to workers, in the order of their turns. Others overtake a suspect that no worker can
        take yet, but each worker keeps a slot free for it."""
        if not self.queue.count(model):
            return
        if not self._pool.has_ready(model):
            self.queue.lose_workers(model)
        if self._pool.hopeless(model) is not None:
            for sequence in self.queue.of(model):
                if not self.wait_ends.budget.has_room(self.serve, model):
                    return
                self.wait_ends.budget.spend()
                self.wait_ends.give_up(sequence)
            return
        held = self._pool.catalog.held(model)
        if not held and not self._serve_urgent(model):
            return
        kept = size = 0
        for sequence in self.queue.turns(model).in_turn():
            # The other sequences of a failed request are about to be cancelled.
            if sequence.request.failure is not None or (kept and suspect(sequence)):
                continue
            if not sequence.had_turn and held:
                return
            if not self._sends.has_room(self.serve, model):
                return
            if self._try(sequence, partial(self._place, kept=kept)):
                self._sends.spend()
                size += sequence.request.body.size
                if size > SERVED_BYTES:
                    self._loop.call_soon(self.serve, model)
                    return
                continue
            self._retry(model)
            if not suspect(sequence):
                return
            kept = 1

    def _serve_urgent(self, model: str) -> bool:
        """Send those to workers that preempt others there. False if they are too many for this turn of the event
        loop."""
        for sequence, handles in self._preemption.for_waiting(model):
            for handle in handles:
                if not self._sends.has_room(self.serve, model):
                    return False
                if self._try(sequence, partial(self._move_to, handle)):
                    self._sends.spend()
                    break
        return True

    def settle(self, sequence: LiveSequence, outcome: str) -> None:
        """Count the outcome of a replay, if the sequence is being replayed."""
        if sequence.cause is not None:
            self._metrics.replayed(sequence.request.model, str(sequence.cause), outcome).inc()
            sequence.cause = None

    def _try(self, sequence: LiveSequence, place: Callable[[LiveSequence], bool]) -> bool:
        """Return what `place` does for a sequence; an exception ends this sequence, and the others get their turns."""
        try:
            return place(sequence)
        except Exception as error:  # noqa: BLE001  a bug, or a request that became too large for a frame
            _log.error("not_placed", request=sequence.request.request_id, exc_info=error)
            self._fail(sequence, RequestFailure(ErrorCode.INTERNAL, f"it cannot be sent: {type(error).__name__}"))
            return True

    def _place(self, sequence: LiveSequence, kept: int) -> bool:
        while (handle := self._find_worker(sequence, kept)) is not None:
            if self._move_to(handle, sequence):
                return True
            handle.refused(self._loop.time())
        return False

    def _move_to(self, handle: WorkerHandle, sequence: LiveSequence) -> bool:
        """Send a waiting sequence to a worker."""
        returned = sequence.had_turn
        if not self._send(handle, [sequence]):
            return False
        self.queue.remove(sequence, sent=True)
        if returned:  # the worker before it may have nothing any more
            self.stirred()
        return True

    def _find_worker(self, sequence: LiveSequence, kept: int = 0) -> WorkerHandle | None:
        """The worker that may get the sequence now. Besides slots that are `kept` for suspects, one must be free."""
        now = self._loop.time()
        # Avoid the worker whose step failed: a device that fails every step always has free slots.
        failed = sequence.request.worker if sequence.cause is Cause.STEP else ""

        def may(handle: WorkerHandle) -> bool:
            room = min(handle.room, handle.slots - kept) if kept else handle.room
            free = not handle.full(now) and len(handle.live) < room and handle.has_adapter(sequence.submit.adapter)
            return free and may_run(sequence, handle.live, handle.slots)

        avoided = None
        candidates = self._pool.candidates(sequence.request.model, worst=Rank.FULL)
        for handle in self._prefill.order(filter(may, candidates), sequence, may):
            if handle.name != failed:
                return handle
            avoided = handle
        return avoided

    def _send(self, handle: WorkerHandle, sequences: Sequence[LiveSequence]) -> bool:
        hello = handle.status.hello
        if hello is None:
            return False
        now = self._loop.time()
        submits = [sequence.submit_as(next(self._numbers), now, suspect=suspect(sequence)) for sequence in sequences]
        try:
            handle.worker.send_nowait(submits)
        except WorkerUnavailable as error:
            _log.info("submit_refused", worker=handle.name, request=submits[0].request, reason=str(error))
            return False
        for sequence, submit in zip(sequences, submits, strict=True):
            first = not sequence.had_turn
            sequence.place(submit, handle.name, handle.kind, hello.context, incarnation=handle.incarnation, now=now)
            held = self.routing.placed(handle, sequence)
            handle.place(sequence, submit)
            self._preemption.add(sequence)
            if first:
                self.charges.begin(sequence, held)
                sequence.queued_s = now - sequence.opened_at if sequence.waited else 0.0
        sequences[0].request.placed(handle.name, hello.config_digest)
        self.idle.clear()
        return True

    def _wait(self, sequences: Iterable[LiveSequence]) -> None:
        for sequence in sequences:
            serves = self.serves(sequence.request.model)
            if self._settings.scheduler_policy == "shortest-uncached-first":
                sequence.uncached = self.routing.uncached(sequence)
            self.queue.add(sequence, in_line=serves)
            self.idle.clear()
            if not serves:
                self.stirred()

    def _retry(self, model: str) -> None:
        """Serve again soon, as time alone makes room: a worker was full, or a circuit was open."""
        timer = self._retries.get(model)
        if self._pool.has_ready(model) and (timer is None or timer.when() <= self._loop.time()):
            self._retries[model] = self._loop.call_later(FULL_S, self.serve, model)

    def serves(self, model: str) -> bool:
        """A worker is ready, and takes new requests."""
        return self._pool.has_ready(model) and not self._pool.catalog.held(model)

    def activity(self, model: str, workers: Container[str]) -> Activity:
        """Count the sequences of a model: those on these workers or on the way to another one, and those that wait for
        their first worker."""
        returned = self.queue.returned(model)
        handles = [handle for handle in self._pool.of(model) if handle.name in workers]
        on_workers = sum(len(handle.live) for handle in handles)
        lost = sum(sequence.request.model == model for sequence in self._lost)
        waiting = self.queue.count(model) - returned
        last_used = max(self._last_waited.get(model, 0.0), *(handle.last_used for handle in handles), 0.0)
        return Activity(on_workers + lost + returned, waiting, last_used)

    def may_come(self, model: str) -> bool:
        """There is no worker, and one may come. A new request is refused at once while workers only fail."""
        comes = not self._pool.has_ready(model) and self._pool.hopeless(model) is None
        return self._settings.worker_wait_s > 0 and comes
