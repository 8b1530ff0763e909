"""Holds an incarnation to what it was asked for: its sequences, their output and their ends. Pure."""

from collections.abc import Iterable

from actors.supervision.asked_sequence import AskedSequence, PeerLied
from protocol.commands import Cancel, Command, LoadAdapter, ReadRows, Submit, Tokenize, UnloadAdapter, WriteRows
from protocol.errors import ErrorCode
from protocol.events import (
    AdapterChanged,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Loading,
    PromptLogprobs,
    Ready,
    Rows,
    RowsWritten,
    Step,
    Tokenized,
)

ANSWER_S = 30.0
"""Time beyond that of a hang: for the end of a sequence that was cancelled or has all its tokens, and for the end of a
worker that has announced it."""
_ANNOUNCES = frozenset({ErrorCode.LOST, ErrorCode.DRAINING})


class OutputCheck:
    """Owns what one incarnation was asked for and has not ended."""

    def __init__(self) -> None:
        self._slots = self._context = 0
        self._open: dict[int, AskedSequence] = {}
        self._row_bytes = 0
        self._queries: dict[int, Tokenize | ReadRows | WriteRows | LoadAdapter | UnloadAdapter] = {}
        self._cancelled: dict[int, float] = {}
        """Open sequences with a `Cancel` on its way, by its time."""
        self._complete: dict[int, float] = {}
        """Open sequences with all their tokens, by the time of the last one."""
        self._announced: float | None = None
        """The time at which it said that it would end."""

    def sent(self, commands: Iterable[Command], now: float) -> None:
        """Note commands that were sent."""
        for command in commands:
            if isinstance(command, Submit):
                self._open[command.stream] = AskedSequence(command, self._context)
            elif isinstance(command, Tokenize | ReadRows | WriteRows | LoadAdapter | UnloadAdapter):
                self._queries[command.query] = command
            elif isinstance(command, Cancel) and command.stream in self._open:
                self._cancelled.setdefault(command.stream, now)

    def check(self, event: Event, now: float) -> None:
        """Check an event that is in order. Raises `PeerLied`."""
        match event:
            case Hello(slots=slots, context=context):
                self._slots, self._context = slots, context
            case Loading(phase=label) | Ready(device=label):
                if isinstance(event, Ready):
                    self._row_bytes = event.row_bytes
                if not label.isprintable():
                    raise PeerLied(f"{type(event).__name__} has a label with control characters")
            case Step():
                self._check_step(event, now)
            case Heartbeat(gauges=gauges):
                self._check_gauges(gauges)
            case PromptLogprobs(stream=stream):
                self._asked(stream).take_prompt(event)
            case Finished(stream=stream):
                self._asked(stream).finish(event, stream in self._cancelled)
                self._close(stream)
            case Failed(stream=stream, code=code):
                self._asked(stream).fail(event)
                self._close(stream)
                if code in _ANNOUNCES and self._announced is None:
                    self._announced = now
            case Tokenized():
                self._check_answer(event)
            case Rows():
                self._check_rows(event)
            case RowsWritten():
                self._check_written(event)
            case AdapterChanged(query=query):
                if not isinstance(self._queries.pop(query, None), LoadAdapter | UnloadAdapter):
                    raise PeerLied(f"query {query} did not ask it to change an adapter")

    def overdue(self, now: float, hang_s: float) -> str | None:
        """Describe an end that has not come in time, or return None."""
        limit = hang_s + ANSWER_S
        for since, what in (
            (next(iter(self._cancelled.values()), now), "no end of a cancelled sequence"),
            (next(iter(self._complete.values()), now), "no end of a sequence that has all its tokens"),
            (now if self._announced is None else self._announced, "no end of a worker that has announced it"),
        ):
            if now - since >= limit:
                return f"{what} for {limit:g} s"
        return None

    def _check_answer(self, event: Tokenized) -> None:
        asked = self._queries.pop(event.query, None)
        if not isinstance(asked, Tokenize):
            raise PeerLied(f"query {event.query} is not one that it has")
        wanted = asked.want if event.code is None else ""
        if event.tokens and wanted != "tokens":
            raise PeerLied(f"query {event.query} did not ask for tokens")
        if wanted == "tokens" and len(event.tokens) != event.count:
            raise PeerLied(f"query {event.query} got {len(event.tokens)} tokens, and the count {event.count}")
        if wanted in ("tokens", "count") and event.text:
            raise PeerLied(f"query {event.query} did not ask for a text")

    def _check_rows(self, event: Rows) -> None:
        asked = self._queries.pop(event.query, None)
        if not isinstance(asked, ReadRows):
            raise PeerLied(f"query {event.query} did not ask it for rows")
        count = len(event.tokens)
        if asked.state:
            most = min(asked.most, max(0, event.state - asked.start))
            if count or len(event.rows) > most or event.held > self._context:
                raise PeerLied(f"query {event.query} got {len(event.rows)} bytes of a recurrent state, or rows")
            return
        if count > asked.most or (count and asked.start + count > event.held):
            raise PeerLied(f"query {event.query} got {count} rows from {asked.start} on, of {event.held}")
        if len(event.rows) != count * self._row_bytes or event.held > self._context:
            raise PeerLied(f"query {event.query} got {len(event.rows)} bytes as {count} rows")

    def _check_written(self, event: RowsWritten) -> None:
        given = self._queries.pop(event.query, None)
        if not isinstance(given, WriteRows):
            raise PeerLied(f"query {event.query} did not give it rows")
        if event.rows not in (0, given.state or given.start + len(given.tokens)):
            raise PeerLied(f"query {event.query} gave it other rows than the {event.rows} that it has")

    def _check_step(self, step: Step, now: float) -> None:
        self._check_gauges(step.gauges)
        for started in step.started:
            self._asked(started.stream).start(started)
        for delta in step.deltas:
            if not delta.tokens:
                raise PeerLied(f"stream {delta.stream} got a delta without a token")
            asked = self._asked(delta.stream)
            asked.take(delta)
            if asked.complete:
                self._complete.setdefault(delta.stream, now)

    def _check_gauges(self, gauges: Gauges) -> None:
        if gauges.slots_active > self._slots:
            raise PeerLied(f"{gauges.slots_active} of its {self._slots} slots are active")

    def _asked(self, stream: int) -> AskedSequence:
        asked = self._open.get(stream)
        if asked is None:
            raise PeerLied(f"stream {stream} is not one that it has")
        return asked

    def _close(self, stream: int) -> None:
        for each in (self._open, self._cancelled, self._complete):
            each.pop(stream, None)
