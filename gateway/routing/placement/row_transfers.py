"""Moves sequences off a worker together with their cache rows, so that no other worker computes them again: all off a
draining one, and off a prefill worker those that have their first token.

Rows go from one worker to the other through the gateway, part by part: it asks the one for a part and gives it to the
other, with a few on their way at a time, so that it keeps none and tokens do not wait behind them. Meanwhile the
sequence runs on, and the rows that it generated go after the others, until few are left (iterative pre-copy, as in live
migration). A recurrent state is read once then, and goes with the rows before it that are missing. At the end the
sequence is resubmitted to the other worker, and finds the rows as it finds any prefix: what is missing is computed. So
a transfer that fails costs nothing but the reuse.
"""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field

import structlog

from actors.supervision.worker import WorkerState, WorkerUnavailable
from gateway.metrics.metrics import Metrics
from gateway.routing.placement.load_order import Rank
from gateway.routing.placement.placement import Placement
from gateway.routing.prefixes.pace import DecayedRatio
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.bounds import MAX_COUNT
from protocol.commands import ReadRows, WriteRows
from protocol.events import Rows, RowsWritten
from protocol.rows_digest import rows_digest

CHUNK_BYTES = 256 * 1024
"""Bytes of one part, but at least one row."""
WINDOW = 8
"""Parts of one transfer that are on their way at once, of which the gateway has one at most."""
MIN_ROWS = 64
"""Rows below which a sequence is not moved: to compute them is as fast."""
STALL_S = 5.0
"""Time for the next answer of a transfer."""
RETRY_S = 0.5
"""Pause until a sequence is looked at again that has no rows yet, or for which no other worker had a slot."""
MEASURED_S = 300.0
"""Time for which it counts how fast rows went last."""
MIN_SPEED = 4.0
"""Rows that are transferred while a sequence generates one: with fewer, too many would be left to compute."""
LEAST_LEFT = 8
"""Rows that were generated during a transfer from which they are transferred as well."""
STAGES = 4
"""Times that this is done at most."""
ATTEMPTS = 2
"""Transfers of one sequence off one worker at most, and as many again if the worker drains later."""

_log = structlog.get_logger("gateway.routing.row_transfers")


@dataclass(slots=True)
class _Leaving:
    """A sequence that is to move."""

    sequence: LiveSequence
    attempts: int = 0
    """Transfers that were begun."""


@dataclass(slots=True, eq=False)
class _Transfer:
    """The rows of one sequence on their way."""

    number: int
    source: WorkerHandle
    target: WorkerHandle
    target_incarnation: int
    leaving: _Leaving
    stream: int
    """Its number on the source."""
    most: int
    """Rows of one part."""
    row_bytes: int
    rows_format: str
    began: float
    timer: asyncio.TimerHandle | None = None
    goal: int = 1
    """Rows that are to go: those that the sequence had by the first answer. Before that, there is one to ask for."""
    asked: int = 0
    """Rows that were asked for."""
    stages: int = 0
    """Times that rows were added which had been generated meanwhile."""
    written: int = 0
    """Rows that the target has."""
    reads: dict[int, ReadRows] = field(default_factory=dict)
    """The parts that the source was asked for, by the number of the question."""
    writes: set[int] = field(default_factory=set)
    """Parts that the target has not answered."""
    state_bytes: int = 0
    """Bytes of the recurrent state; 0 if there is none, or before the first answer."""
    state_rows: int = 0
    """The rows that the state follows which is on its way; 0 before it was read."""
    state_asked: int = 0
    """Bytes of it that were asked for."""

    @property
    def asks_state(self) -> bool:
        """There are parts of the state to ask for."""
        return self.state_rows > 0 and self.state_asked < self.state_bytes

    @property
    def sequence(self) -> LiveSequence:
        """The sequence whose rows they are."""
        return self.leaving.sequence

    @property
    def concerned(self) -> WorkerHandle:
        """The worker that has to answer next."""
        return self.source if self.reads else self.target


@dataclass(slots=True)
class _Moves:
    """An incarnation whose sequences are to move: those that have not been looked at, and the one that is on its way.
    Kept until the incarnation is lost."""

    incarnation: int
    draining: bool = False
    """All sequences that it had were added when it began to drain."""
    waiting: deque[_Leaving] = field(default_factory=deque)
    transfer: _Transfer | None = None
    retry: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Cancel its timers."""
        for timer in (self.retry, None if self.transfer is None else self.transfer.timer):
            if timer is not None:
                timer.cancel()


class RowTransfers:
    """Synchronous, on the event loop. The router tells it of draining workers, of lost ones, of their answers, and of
    sequences that have their first token.

    One sequence of a worker is moved at a time. Rows go between workers of one kind and one format of rows
    alone, for one sequence and its tenant; both workers check their digest.
    """

    def __init__(self, pool: WorkerPool, placement: Placement, metrics: Metrics) -> None:
        self._pool = pool
        self._placement = placement
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._moves: dict[str, _Moves] = {}
        self._questions: dict[int, _Transfer] = {}
        """The transfers that wait for answers, by the number of the question."""
        self._stalled: dict[str, int] = {}
        """Incarnations of workers that did not answer in time: they are asked nothing any more."""
        self._rates: dict[str, tuple[DecayedRatio, float]] = {}
        """Bytes by seconds of the transfers between workers of each model, and the time of the last one."""

    def drain(self, handle: WorkerHandle) -> None:
        """Move the sequences of a worker that is to leave, as far as others have slots for them."""
        moves = self._of(handle)
        if moves is None or moves.draining:
            return
        moves.draining = True
        on_the_way = None if moves.transfer is None else moves.transfer.sequence
        moves.waiting = deque(_Leaving(each) for each in handle.live.values() if each is not on_the_way)
        self._next(handle)

    def begun(self, handle: WorkerHandle, sequence: LiveSequence) -> None:
        """Move a sequence that has its first token, if its worker is a prefill worker."""
        if not handle.prefills or sequence.ended or (moves := self._of(handle)) is None or moves.draining:
            return
        # Those before it may have ended while they waited for a slot.
        moves.waiting = deque(each for each in moves.waiting if _is_on(each.sequence, handle))
        moves.waiting.append(_Leaving(sequence))
        if moves.transfer is None and moves.retry is None:
            self._loop.call_soon(self._next, handle)

    def _of(self, handle: WorkerHandle) -> _Moves | None:
        """Return the moves of a worker; None if it gives no rows."""
        if not handle.rows_format or self._stalled.get(handle.name) == handle.incarnation:
            return None
        moves = self._moves.get(handle.name)
        if moves is None or moves.incarnation != handle.incarnation:
            moves = self._moves[handle.name] = _Moves(handle.incarnation)
        return moves

    def moves(self, handle: WorkerHandle) -> bool:
        """A sequence of the worker is on its way."""
        moves = self._moves.get(handle.name)
        return moves is not None and moves.transfer is not None

    def lost(self, handle: WorkerHandle) -> None:
        """Forget the transfers from and to a worker that is gone, or is given nothing any more."""
        self._stalled.pop(handle.name, None)
        if (moves := self._moves.pop(handle.name, None)) is not None:
            moves.stop()
            if moves.transfer is not None:
                self._forget(moves.transfer)
                self._break_off(moves.transfer)
        for moves in [*self._moves.values()]:
            if moves.transfer is not None and moves.transfer.target is handle:
                self._end(moves.transfer, "lost")

    def take(self, handle: WorkerHandle, event: Rows | RowsWritten) -> None:
        """Handle the answer of a worker. One that nobody waits for any more is ignored."""
        transfer = self._questions.pop(event.query, None)
        if transfer is None:
            return
        if not self._goes_on(transfer):
            self._end(transfer, "ended")
            return
        self._watch(transfer)
        outcome = self._pass_on(transfer, event) if isinstance(event, Rows) else self._note_written(transfer, event)
        if outcome:
            self._end(transfer, outcome)
        elif transfer.asked < transfer.goal or transfer.asks_state:
            self._ask(transfer)
        elif not transfer.reads and not transfer.writes:
            if not transfer.state_rows and self._goal_has_moved(transfer):
                self._ask(transfer)
            elif transfer.state_bytes and not transfer.state_rows:
                self._send(transfer, [self._state_question(transfer)])
            else:
                self._finish(transfer)

    def _next(self, source: WorkerHandle) -> None:
        """Begin with the next sequence of a worker for which another one has a slot."""
        moves = self._moves.get(source.name)
        if moves is None or moves.transfer is not None or moves.incarnation != source.incarnation:
            return
        moves.stop()
        moves.retry = None
        if not _leave(source):  # it has ended, which is about to be reported
            moves.waiting.clear()
        while moves.waiting:
            leaving = moves.waiting[0]
            if not _is_on(leaving.sequence, source):
                moves.waiting.popleft()
                continue
            target = self._target(source, leaving.sequence)
            if target is None:
                moves.retry = self._loop.call_later(RETRY_S, self._next, source)
                return
            moves.waiting.popleft()
            if self._begin(moves, source, target, leaving):
                return

    def _target(self, source: WorkerHandle, sequence: LiveSequence) -> WorkerHandle | None:
        """Return the worker that continues a sequence. It is not another prefill worker, unless this one leaves."""
        leaves = source.status.state is WorkerState.DRAINING
        like = (
            handle
            for handle in self._pool.candidates(source.model, worst=Rank.TRIES_SUSPECT)
            if handle is not source
            and source.shares_rows(handle)
            and (leaves or not handle.prefills)
            and self._stalled.get(handle.name) != handle.incarnation
        )
        return next((handle for handle in like if self._placement.has_slot(handle, sequence)), None)

    def _begin(self, moves: _Moves, source: WorkerHandle, target: WorkerHandle, leaving: _Leaving) -> bool:
        ready = source.status.ready
        assert ready is not None, "a format of rows is known"
        now, number = self._loop.time(), secrets.randbelow(MAX_COUNT)
        most = max(1, CHUNK_BYTES // max(1, ready.row_bytes))
        transfer = _Transfer(
            number,
            source,
            target,
            target.incarnation,
            leaving,
            leaving.sequence.submit.stream,
            most,
            ready.row_bytes,
            source.rows_format,
            now,
        )
        self._watch(transfer)
        moves.transfer = transfer
        leaving.attempts += 1
        return self._ask(transfer)

    def _goes_on(self, transfer: _Transfer) -> bool:
        sequence, target = transfer.sequence, transfer.target
        on_source = sequence.worker == transfer.source.name and sequence.submit.stream == transfer.stream
        return on_source and not sequence.ended and target.incarnation == transfer.target_incarnation

    def _ask(self, transfer: _Transfer) -> bool:
        """Ask for further parts, up to the window. False if the source takes no question: the transfer has ended."""
        questions: list[ReadRows] = []
        while len(transfer.reads) + len(transfer.writes) < WINDOW:
            if transfer.asked < transfer.goal:
                # The last rows before a state are exactly those: behind others it would be of no use.
                most = min(transfer.most, transfer.goal - transfer.asked) if transfer.state_rows else transfer.most
                asked = ReadRows(self._question(transfer), transfer.number, transfer.stream, transfer.asked, most)
                transfer.reads[asked.query] = asked
                transfer.asked += most
                questions.append(asked)
            elif transfer.asks_state:
                questions.append(self._state_question(transfer))
            else:
                break
        return self._send(transfer, questions) if questions else True

    def _state_question(self, transfer: _Transfer) -> ReadRows:
        query, start = self._question(transfer), transfer.state_asked
        asked = ReadRows(query, transfer.number, transfer.stream, start, CHUNK_BYTES, state=True)
        transfer.reads[query] = asked
        transfer.state_asked += CHUNK_BYTES
        return asked

    def _send(self, transfer: _Transfer, questions: list[ReadRows]) -> bool:
        try:
            transfer.source.worker.send_nowait(questions)
        except WorkerUnavailable as error:
            self._end(transfer, "unavailable", reason=str(error))
            return False
        return True

    def _question(self, transfer: _Transfer) -> int:
        query = secrets.randbelow(MAX_COUNT)
        self._questions[query] = transfer
        return query

    def _pass_on(self, transfer: _Transfer, event: Rows) -> str:
        """Give a part to the target. Returns why the transfer ends, or nothing."""
        asked = transfer.reads.pop(event.query)
        if asked.state:
            return self._pass_state_on(transfer, asked, event)
        start, count = asked.start, len(event.tokens)
        if not start:
            transfer.goal, transfer.state_bytes = event.held, event.state
            if transfer.sequence.attempts[-1].started is None:
                return "early"
            if event.held < MIN_ROWS:
                return "short"
            if not self._gains(transfer):
                return "slow"
        if count < asked.most:
            if not count or transfer.reads or transfer.state_rows:  # it lost its rows meanwhile, as by a preemption
                return "unread"
            transfer.asked = start + count
        return self._give(transfer, start, event)

    def _pass_state_on(self, transfer: _Transfer, asked: ReadRows, event: Rows) -> str:
        """Give a part of the recurrent state to the target. The rows before it that the target lacks go as well."""
        if not asked.start:
            if event.held < transfer.asked:
                return "unread"
            transfer.goal = transfer.state_rows = event.held
        if len(event.rows) != min(asked.most, transfer.state_bytes - asked.start) or event.held != transfer.state_rows:
            return "unread"
        return self._give(transfer, asked.start, event, state=event.held)

    def _give(self, transfer: _Transfer, start: int, event: Rows, state: int = 0) -> str:
        """Give what the source has answered to the target. Returns why the transfer ends, or nothing."""
        tenant, query = transfer.sequence.submit.tenant, self._question(transfer)
        write = WriteRows(query, transfer.number, tenant, start, event.tokens, event.rows, event.digest, state)
        try:
            transfer.target.worker.send_nowait([write])
        except WorkerUnavailable as error:
            _log.info("rows_not_sent", worker=transfer.target.name, reason=str(error))
            return "unavailable"
        transfer.writes.add(write.query)
        return ""

    def _note_written(self, transfer: _Transfer, event: RowsWritten) -> str:
        transfer.writes.discard(event.query)
        if not event.rows:
            _log.info("rows_refused", worker=transfer.target.name, reason=event.text)
            return "refused"
        transfer.written = event.rows
        return ""

    def _gains(self, transfer: _Transfer) -> bool:
        """Rows go fast enough, as far as that was measured lately. What a sequence generates meanwhile is computed
        again: so rows must go faster than that, as in any live migration."""
        sequence, (ratio, at) = transfer.sequence, self._rates.get(transfer.source.model, (None, 0.0))
        took_s = sequence.last_at - sequence.first_at
        if ratio is None or self._loop.time() - at > MEASURED_S or took_s <= 0:
            return True
        return ratio.value(1.0) > MIN_SPEED * transfer.row_bytes * len(sequence.tokens) / took_s

    def _goal_has_moved(self, transfer: _Transfer) -> bool:
        """So many rows were generated meanwhile that they are to go as well."""
        attempt = transfer.sequence.attempts[-1]
        if attempt.started is None or transfer.stages == STAGES:
            return False
        # The last token that was delivered has no row yet.
        rows = attempt.started.prompt_tokens + len(transfer.sequence.tokens) - attempt.resumed - 1
        if rows < transfer.asked + LEAST_LEFT:
            return False
        transfer.goal, transfer.stages = rows, transfer.stages + 1
        return True

    def _finish(self, transfer: _Transfer) -> None:
        """The target has the rows."""
        model, now = transfer.source.model, self._loop.time()
        size = transfer.written * transfer.row_bytes + transfer.state_bytes
        ratio, _ = self._rates.get(model, (DecayedRatio(), 0.0))
        ratio.add(size, max(now - transfer.began, 1e-6))
        self._rates[model] = ratio, now
        self._metrics.rows_transferred(model).inc(size)
        source, target = transfer.source, transfer.target
        why = "computes prompts" if source.prefills and source.ready else "leaves"
        reason = f"worker {source.name} {why}, and {target.name} has its rows"
        moved = self._placement.move(transfer.sequence, transfer.target, reason)
        self._end(transfer, "moved" if moved else "full")

    def _stall(self, transfer: _Transfer) -> None:
        self._stalled[transfer.concerned.name] = transfer.concerned.incarnation
        self._end(transfer, "stalled")

    def _watch(self, transfer: _Transfer) -> None:
        """Set the time for its next answer."""
        if transfer.timer is not None:
            transfer.timer.cancel()
        transfer.timer = self._loop.call_later(STALL_S, self._stall, transfer)

    def _forget(self, transfer: _Transfer) -> None:
        if transfer.timer is not None:
            transfer.timer.cancel()
        for query in (*transfer.reads, *transfer.writes):
            self._questions.pop(query, None)

    def _break_off(self, transfer: _Transfer) -> None:
        """Let the target free rows whose recurrent state is not to follow, which no sequence could use."""
        if not transfer.state_bytes or not (transfer.written or transfer.writes):
            return
        if transfer.target.incarnation != transfer.target_incarnation:
            return
        digest = rows_digest(transfer.rows_format, transfer.number, 0, (), b"")
        end = WriteRows(
            secrets.randbelow(MAX_COUNT), transfer.number, transfer.sequence.submit.tenant, 0, (), b"", digest
        )
        try:
            transfer.target.worker.send_nowait([end])
        except WorkerUnavailable as error:  # it evicts them at last as it evicts any rows
            _log.info("rows_not_sent", worker=transfer.target.name, reason=str(error))

    def _end(self, transfer: _Transfer, outcome: str, *, reason: str = "") -> None:
        """End a transfer, and begin the next one of its worker. The sequence gets one more attempt where another target
        or moment may do."""
        self._forget(transfer)
        if outcome not in ("moved", "full"):
            self._break_off(transfer)
        source, sequence = transfer.source, transfer.sequence
        if outcome == "early":  # its prompt is yet to be computed
            self._wait(source, transfer.leaving)
            return
        self._metrics.row_transfer(source.model, outcome).inc()
        _log.info(
            "rows_transferred",
            request=sequence.request.request_id,
            worker=source.name,
            target=transfer.target.name,
            outcome=outcome,
            rows=transfer.written,
            reason=reason,
        )
        moves = self._moves.get(source.name)
        if moves is None or moves.transfer is not transfer:
            return
        moves.transfer = None
        if self._stalled.get(source.name) == source.incarnation or not _leave(source):
            moves.stop()
            moves.waiting.clear()
            return
        again = outcome not in ("moved", "short", "slow", "ended")
        if again and transfer.leaving.attempts < ATTEMPTS:
            moves.waiting.append(transfer.leaving)
        self._loop.call_soon(self._next, source)

    def _wait(self, source: WorkerHandle, leaving: _Leaving) -> None:
        """Look at a sequence again later, after the others of its worker."""
        moves = self._moves.get(source.name)
        if moves is not None:
            moves.transfer = None
            leaving.attempts -= 1
            moves.waiting.append(leaving)
            moves.retry = self._loop.call_later(RETRY_S, self._next, source)


def _is_on(sequence: LiveSequence, handle: WorkerHandle) -> bool:
    return not sequence.ended and sequence.worker == handle.name


def _leave(handle: WorkerHandle) -> bool:
    """The sequences of a worker are to move."""
    return handle.status.state is WorkerState.DRAINING or (handle.prefills and handle.ready)
