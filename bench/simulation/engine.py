"""The engine of a virtual worker: its slots are real, and its steps take virtual time."""

from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from actors.supervision.deadlines import Deadlines
from bench.simulation.event_loop import SimulationLoop
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Gauges, Heartbeat, StartedStream, Step, Usage
from protocol.request import TokensInput

MODEL = "simulated"
TEXT = " word"
"""The text of each token."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The pace of a virtual worker, in seconds."""

    slots: int = 8
    step_s: float = 0.04
    """An engine step, and as much again for what follows."""
    row_s: float = 0.001
    """Each running sequence in a step."""
    prefill_s: float = 0.0001
    """Each token of a prompt, and each resumed one."""
    load_s: float = 5.0
    """From the start of its process until it is ready."""
    context: int = 4096


def token_at(key: int, position: int) -> int:
    """The token of a request at a position of its answer: the same on each worker."""
    return (key * 7919 + position * 104729) % 32000


@dataclass(slots=True, eq=False)
class _VirtualRow:
    stream: int
    key: int
    prompt: int
    most: int
    position: int
    received_at: float
    slot_at: float = 0.0
    first_at: float = 0.0


class VirtualEngine:
    """Owns the sequences of one worker, over all its processes."""

    def __init__(
        self,
        loop: SimulationLoop,
        model: EngineModel,
        emit: Callable[[Sequence[Event]], None],
        crash: Callable[[], None],
        poison: Container[int] = (),
    ) -> None:
        """`emit` takes what it reports, and `crash` ends its process: at a step with a request whose key is in
        `poison`, and when its supervisor finds that it hangs."""
        self.slowness = 1.0
        """The factor of its steps."""
        self.fails_step = False
        """Its next step fails."""
        self.tokens = 0
        """Tokens that it has generated, over all processes."""
        self._loop = loop
        self._model = model
        self._emit = emit
        self._crash = crash
        self._poison = poison
        self._life = 0
        """The number of its process. What an earlier one had planned does not happen."""
        self.restart()

    def restart(self) -> None:
        """Begin anew with nothing, as its process has ended."""
        self._life += 1
        self._waiting: deque[_VirtualRow] = deque()
        self._rows: list[_VirtualRow] = []
        self._stepping = self._hangs = self.fails_step = False
        self._steps = self._steps_failed = self._reached = self._slowest_ms = 0

    def hang(self) -> None:
        """Finish no step any more, until the process is restarted."""
        self._hangs = True
        if self._rows:
            self._await_supervisor()

    def submit(self, submit: Submit) -> None:
        """Take a sequence."""
        assert isinstance(submit.input, TokensInput), "clients send tokens"
        prompt = submit.input.tokens
        most = submit.limits.max_tokens or 0
        now = self._loop.time()
        self._waiting.append(_VirtualRow(submit.stream, prompt[0], len(prompt), most, len(submit.resume), now))
        self._reached = max(self._reached, submit.stream)
        self._begin_step()

    def cancel(self, stream: int) -> None:
        """End a sequence that has not ended."""
        for rows in (self._rows, self._waiting):
            for row in rows:
                if row.stream == stream:
                    rows.remove(row)
                    self._emit([Finished(stream, "cancelled", Usage(0, 0))])
                    return

    def gauges(self) -> Gauges:
        """Its gauges now."""
        return Gauges(
            slots_active=len(self._rows),
            queue_depth=len(self._waiting),
            steps=self._steps,
            steps_failed=self._steps_failed,
            slowest_step_ms=self._slowest_ms,
            reached=self._reached,
        )

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        life = self._life
        self._loop.after(seconds, lambda: then() if life == self._life else None)

    def _await_supervisor(self) -> None:
        self._later(Deadlines().step(self._model.step_s), self._crash)

    def _begin_step(self) -> None:
        if self._stepping:
            return
        prefilled = 0
        while self._waiting and len(self._rows) < self._model.slots:
            row = self._waiting.popleft()
            row.slot_at = self._loop.time()
            prefilled += row.prompt + row.position
            self._rows.append(row)
        if not self._rows:
            return
        self._stepping = True
        if self._hangs:
            self._await_supervisor()
            return
        model = self._model
        step_s = model.step_s + model.row_s * len(self._rows) + model.prefill_s * prefilled
        self._slowest_ms = max(self._slowest_ms, int(1000 * step_s * self.slowness))
        self._later(step_s * self.slowness, self._end_step)

    def _end_step(self) -> None:
        if self._hangs:
            return
        self._stepping = False
        self._steps += 1
        if self._poison and any(row.key in self._poison for row in self._rows):
            self._crash()
            return
        self._emit(self._failed_step() if self.fails_step else self._step())
        self._begin_step()

    def _step(self) -> list[Event]:
        now = self._loop.time()
        deltas, started, ends = [], [], []
        for row in self._rows:
            deltas.append(Delta(row.stream, (token_at(row.key, row.position),), TEXT))
            row.position += 1
            if not row.first_at:
                row.first_at = now
                started.append(StartedStream(row.stream, prompt_tokens=row.prompt))
            if row.position >= row.most:
                ends.append(row)
        self.tokens += len(deltas)
        for row in ends:
            self._rows.remove(row)
        step = Step(tuple(deltas), self.gauges(), tuple(started))
        return [step, *(Finished(row.stream, "length", self._usage(row)) for row in ends)]

    def _failed_step(self) -> list[Event]:
        self.fails_step = False
        self._steps_failed += 1
        rows, self._rows = self._rows, []
        failed = [Failed(row.stream, ErrorCode.STEP, "the step failed") for row in rows]
        return [Heartbeat(self.gauges()), *failed]

    def _usage(self, row: _VirtualRow) -> Usage:
        queue_s, prefill_s = row.slot_at - row.received_at, row.first_at - row.slot_at
        times = (int(1000 * seconds) for seconds in (queue_s, prefill_s, self._loop.time() - row.first_at))
        return Usage(row.prompt, row.position, *times)
