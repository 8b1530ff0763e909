"""A worker as its gateways use it: what each of them sends goes there in its turn, and what comes back to whom it is
about."""

from collections.abc import Callable

from msgspec.structs import replace

from actors.process.exit_cause import Origin
from actors.supervision.worker import IncarnationLost, WorkerUnavailable
from actors.supervision.worker_actor import WorkerRef
from protocol.bounds import MAX_FRAMES_PER_MESSAGE, MAX_NAME, clip
from protocol.commands import Cancel, LoadAdapter, ReadRows, Submit, Tokenize, UnloadAdapter, WriteRows
from protocol.errors import ByeReason, ErrorCode
from protocol.events import (
    AdapterChanged,
    Event,
    Failed,
    Finished,
    Heartbeat,
    PromptLogprobs,
    Rows,
    RowsWritten,
    Step,
    Tokenized,
    Usage,
)
from workers.process.gateways.prefix_reports import PrefixReports
from workers.process.gateways.shares import NoTurn, Shares

MAX_QUERIES = 64
"""Queries of all gateways that the worker has not answered, of which each gateway has an equal share: as many as wait
in `workers.process.prompts.tokenize_queue`."""
MAX_ROW_QUESTIONS = 64
"""Questions of all gateways about cache rows that the worker has not answered, of which each has an equal share."""
_NOT_FOR_A_REQUEST = frozenset({Origin.OUTSIDE, Origin.MISBEHAVED})
"""Origins of an end that no request has caused."""

Deliver = Callable[[int, Event], None]


class SharedWorker:
    """Synchronous. `deliver` is called with the number of a gateway and what it gets, maybe inside each method."""

    def __init__(self, worker: WorkerRef, prefixes: list[str], clock: Callable[[], float], deliver: Deliver) -> None:
        """`prefixes` are those of the tenants of each gateway."""
        self.worker = worker
        self._prefixes = prefixes
        self._clock = clock
        self._deliver = deliver
        self._shares = Shares(len(prefixes))
        self._held = PrefixReports(prefixes)
        self._queries: dict[int, int] = {}
        """The gateways that sent queries, by the numbers of those."""
        self._row_questions: dict[int, int] = {}
        """The same for questions about cache rows."""

    @property
    def alone(self) -> bool:
        """There is one gateway, which does with the worker what it wants."""
        return self._shares.alone

    @property
    def gateways(self) -> int:
        """The number of gateways."""
        return len(self._prefixes)

    def live(self, gateway: int) -> bool:
        """The gateway has sequences here."""
        return self._shares.live(gateway)

    def joined(self, gateway: int) -> None:
        """Note that a gateway has joined."""
        self._held.joined(gateway)

    # What gateways send.

    def submit(self, gateway: int, submit: Submit) -> None:
        """Take a sequence. Raises `ProtocolError`."""
        if prefix := self._prefixes[gateway]:
            submit = replace(submit, tenant=prefix + submit.tenant)
            if len(submit.tenant) > MAX_NAME:
                text = f"a tenant has at most {MAX_NAME - len(prefix)} characters on a worker of several gateways"
                self._deliver(gateway, Failed(submit.stream, ErrorCode.INVALID, text))
                return
        try:
            self._shares.add(gateway, submit, self._clock())
        except NoTurn as error:
            self._deliver(gateway, Failed(submit.stream, ErrorCode.OVERLOADED, str(error)))
        else:
            self._take_turns()

    def cancel(self, gateway: int, stream: int) -> None:
        """End a sequence. Raises `WorkerUnavailable` if the worker did not get the cancel."""
        number = self._shares.cancel(gateway, stream)
        if number == 0:
            self._deliver(gateway, Finished(stream, "cancelled", Usage(0, 0)))
        elif number is not None:
            self.worker.send_nowait([Cancel(number)])

    def ask(self, gateway: int, asked: Tokenize) -> None:
        """Pass a query on. The number of one that is not answered yet is not used again."""
        share = MAX_QUERIES // self.gateways
        if asked.query in self._queries or sum(each == gateway for each in self._queries.values()) >= share:
            text = f"{share} queries of this gateway are waiting already"
            self._deliver(gateway, Tokenized(asked.query, text=text, code=ErrorCode.OVERLOADED))
            return
        try:
            self.worker.send_nowait([asked])
        except WorkerUnavailable as error:
            self._deliver(gateway, Tokenized(asked.query, text=clip(str(error)), code=ErrorCode.OVERLOADED))
        else:
            self._queries[asked.query] = gateway

    def ask_rows(self, gateway: int, asked: ReadRows | WriteRows) -> None:
        """Pass a question about cache rows on. It is answered without any where the worker cannot be asked."""
        whose = self._row_questions
        refusal = Rows(asked.query) if isinstance(asked, ReadRows) else RowsWritten(asked.query, text="not passed on")
        command = self._as_on_worker(gateway, asked)
        full = sum(each == gateway for each in whose.values()) >= MAX_ROW_QUESTIONS // self.gateways
        if command is None or full or asked.query in whose:
            self._deliver(gateway, refusal)
            return
        try:
            self.worker.send_nowait([command])
        except WorkerUnavailable:
            self._deliver(gateway, refusal)
        else:
            whose[asked.query] = gateway

    def change_adapters(self, gateway: int, command: LoadAdapter | UnloadAdapter) -> None:
        """Pass a change of the adapters on, for the only gateway."""
        try:
            if not self.alone:
                raise WorkerUnavailable("a worker of several gateways loads no adapters at run time")
            self.worker.send_nowait([command])
        except WorkerUnavailable as error:
            self._deliver(gateway, AdapterChanged(command.query, clip(str(error))))

    def _as_on_worker(self, gateway: int, asked: ReadRows | WriteRows) -> ReadRows | WriteRows | None:
        """The question with the worker's number of the sequence, or its name of the tenant; None if it has neither."""
        if isinstance(asked, ReadRows):
            number = self._shares.number(gateway, asked.stream)
            return None if number is None else replace(asked, stream=number)
        tenant = self._prefixes[gateway] + asked.tenant
        return replace(asked, tenant=tenant) if len(tenant) <= MAX_NAME else None

    def leave(self, gateway: int) -> None:
        """Cancel all that a gateway has here, as it is gone. Raises `WorkerUnavailable` if the worker did not get the
        cancels."""
        self._queries = {query: whose for query, whose in self._queries.items() if whose != gateway}
        self._row_questions = {query: whose for query, whose in self._row_questions.items() if whose != gateway}
        cancels = [Cancel(number) for number in self._shares.leave(gateway)]
        for start in range(0, len(cancels), MAX_FRAMES_PER_MESSAGE):
            self.worker.send_nowait(cancels[start : start + MAX_FRAMES_PER_MESSAGE])

    def return_all(self, gateway: int, text: str) -> None:
        """Return all sequences to a gateway, which continues them elsewhere. `leave` must follow."""
        for stream in self._shares.streams(gateway):
            self._deliver(gateway, Failed(stream, ErrorCode.DRAINING, text))

    # What the worker sends.

    def describe(self, slots: int) -> None:
        """Note the slots of the worker."""
        self._shares.slots = slots

    def pass_on(self, event: Event) -> None:
        """Deliver a step, the log-probabilities of a prompt, a heartbeat, an end, or the answer to a query."""
        match event:
            case Step():
                self._note(event)
                for gateway, step in self._shares.split(event):
                    self._deliver(gateway, replace(step, prefixes=self._held.take(gateway)))
            case Heartbeat():
                self._note(event)
                for gateway in range(self.gateways):
                    self._deliver(gateway, self.heartbeat(gateway, event))
            case PromptLogprobs():
                if (part := self._shares.prompt(event)) is not None:
                    self._deliver(*part)
            case Finished() | Failed():
                if (end := self._shares.ended(event)) is not None:
                    self._deliver(*end)
                    self._take_turns()
            case Tokenized(query):
                if (asker := self._queries.pop(query, None)) is not None:
                    self._deliver(asker, event)
            case AdapterChanged() if self.alone:
                self._deliver(0, event)
            case Rows(query) | RowsWritten(query):
                if (asker := self._row_questions.pop(query, None)) is not None:
                    self._deliver(asker, event)

    def heartbeat(self, gateway: int, event: Heartbeat) -> Heartbeat:
        """A heartbeat of the worker, for a gateway."""
        return Heartbeat(self._shares.gauges(gateway, event.gauges), self._held.take(gateway))

    def end_waits(self) -> None:
        """End the sequences that have waited for too long. Called with each heartbeat: they may be that much late, and
        one that goes to the worker late ends there."""
        for gateway, end in self._shares.late(self._clock()):
            self._deliver(gateway, end)

    def lost(self, loss: IncarnationLost) -> list[ByeReason]:
        """The worker is gone, and all that it had; what had not gone there is returned. Returns the reason that each
        gateway is notified of: the end is attributed to the requests of all, or to those of the gateways with a suspect
        or with a request that has just begun."""
        suspected, untried = self._shares.suspected(), self._shares.untried()
        self._queries, self._row_questions = {}, {}
        self._held.clear()
        for gateway, streams in self._shares.clear().items():
            for stream in streams:
                self._deliver(gateway, Failed(stream, ErrorCode.DRAINING, "the worker ended before it got the request"))
        if loss.origin in _NOT_FOR_A_REQUEST:
            return [ByeReason.KILLED] * self.gateways
        return [
            ByeReason.KILLED if suspected and gateway not in suspected | untried else ByeReason.DIED
            for gateway in range(self.gateways)
        ]

    def _note(self, event: Step | Heartbeat) -> None:
        self._shares.note(event.gauges)
        self._held.note(event.prefixes)

    def _take_turns(self) -> None:
        while (submit := self._shares.take(self._clock())) is not None:
            try:
                self.worker.send_nowait([submit])
            except WorkerUnavailable as error:
                whose = self._shares.end(submit.stream)
                assert whose is not None, "it has just got this number"
                self._deliver(whose.gateway, Failed(whose.stream, ErrorCode.OVERLOADED, clip(str(error))))
