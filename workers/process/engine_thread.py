"""The one thread that loads and runs the engine, and what it exchanges with the event loop."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from protocol.bounds import MAX_REASON
from protocol.errors import ByeReason, ErrorCode
from workers.engine.engine import BatchEngine
from workers.engine.request import End, Failure, Request, RequestRefused
from workers.errors import LoadRefused
from workers.load_options import Progress
from workers.process.loading import Loaded
from workers.process.output_processor import Outcome

MAX_FAILED_STEPS = 10
"""Failed steps in a row after which the worker leaves, for its supervisor to start a new one."""
MAX_UNDELIVERED = 64
"""Turns whose outcome the loop has not taken; at this bound the engine waits for the loop."""


@dataclass(frozen=True, slots=True)
class TakeOut:
    """End a sequence that the engine has. `finish` when a stop string was found, else it is cancelled."""

    stream: int
    finish: bool = False


Order = Request | TakeOut


class EngineListener(Protocol):
    """Called on the event loop's thread, in order."""

    def engine_progress(self, phase: str, done: int, total: int) -> None: ...

    def engine_loaded(self, loaded: Loaded) -> None: ...

    def engine_turned(self) -> None:
        """Outcomes wait for `take`. Called once until they are taken."""

    def engine_down(self, reason: ByeReason, text: str) -> None:
        """The thread has ended by itself: the load or too many steps failed, or there is a defect."""


class EngineThread:
    """Blocks while there is nothing to do, and never polls. All orders of one `post` are taken before the next step."""

    def __init__(
        self,
        load: Callable[[Progress], Loaded],
        listener: EngineListener,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`load` runs on the thread; `call_soon` hands a callback to the loop, as `loop.call_soon_threadsafe` does."""
        self._load = load
        self._listener = listener
        self._call_soon = call_soon
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # Guards what follows; notified when a side may have something new to do.
        self._changed = threading.Condition()
        self._inbox: list[Order] = []
        self._outcomes: list[Outcome] = []
        self._stopping = False

    def start(self) -> None:
        self._thread.start()

    def post(self, orders: Sequence[Order]) -> None:
        """Give orders together, from the loop."""
        with self._changed:
            self._inbox.extend(orders)
            self._changed.notify_all()

    def stop(self) -> None:
        """Ask the thread to close the engine and end, after the step that it is in."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; false when the thread is still inside a call of the device."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take(self) -> Sequence[Outcome]:
        """Everything that the engine brought since the last call, in order."""
        with self._changed:
            outcomes, self._outcomes = self._outcomes, []
            if len(outcomes) >= MAX_UNDELIVERED:
                self._changed.notify_all()
        return outcomes

    def _run(self) -> None:
        try:
            loaded = self._load(self._report)
        except BaseException as error:  # noqa: BLE001  whatever a backend raises (a panic of Rust code is no Exception)
            text = _sentence(error)
            refused = isinstance(error, LoadRefused)
            if refused:  # a sentence for a person, which the gateway says
                self._log.info("load_refused", text=text)
            else:
                self._log.error("load_failed", text=text, exc_info=error)
            self._down(ByeReason.LOAD_REFUSED if refused else ByeReason.LOAD_FAILED, text)
            return
        try:
            self._hand(lambda: self._listener.engine_loaded(loaded))
            try:
                self._serve(loaded.engine)
            finally:
                loaded.engine.close()
        except BaseException as error:  # noqa: BLE001  a defect must reach the gateway as a reason, not as silence
            self._log.error("engine_failed", exc_info=error)
            self._down(ByeReason.INTERNAL, _sentence(error))

    def _serve(self, engine: BatchEngine) -> None:
        while True:
            with self._changed:
                while not self._stopping and (
                    len(self._outcomes) >= MAX_UNDELIVERED or (not self._inbox and engine.idle)
                ):
                    self._changed.wait()
                if self._stopping:
                    return
                orders, self._inbox = self._inbox, []
            self._publish(self._turn(engine, orders))
            if engine.failures_in_a_row >= MAX_FAILED_STEPS:
                self._down(ByeReason.STEPS_FAILED, f"{engine.failures_in_a_row} engine steps in a row failed")
                return

    def _turn(self, engine: BatchEngine, orders: Sequence[Order]) -> Outcome:
        """Take all orders, then run one step."""
        ends: list[End] = []
        failures: list[Failure] = []
        for order in orders:
            if isinstance(order, Request):
                try:
                    engine.submit(order)
                except RequestRefused as refusal:
                    failures.append(Failure(order.stream, refusal.code, refusal.text, refusal.field))
                except Exception as error:  # noqa: BLE001 - a defect that one request finds must end that one only
                    self._log.error("submit_failed", stream=order.stream, exc_info=error)
                    text = f"the request could not be queued: {type(error).__name__}"
                    failures.append(Failure(order.stream, ErrorCode.INTERNAL, text))
            else:
                end = engine.finish(order.stream) if order.finish else engine.cancel(order.stream)
                if end is not None:
                    ends.append(end)
        step = None if engine.idle else engine.step()
        return Outcome(step, tuple(ends), tuple(failures), engine.gauges())

    def _publish(self, outcome: Outcome) -> None:
        with self._changed:
            self._outcomes.append(outcome)
            first = len(self._outcomes) == 1
        if first:  # otherwise the callback that takes it is on its way
            self._hand(self._listener.engine_turned)

    def _report(self, phase: str, done: int, total: int) -> None:
        self._hand(lambda: self._listener.engine_progress(phase, done, total))

    def _down(self, reason: ByeReason, text: str) -> None:
        self._hand(lambda: self._listener.engine_down(reason, text))

    def _hand(self, callback: Callable[[], None]) -> None:
        try:
            self._call_soon(callback)
        except RuntimeError:  # the loop is closed: the process is on its way out
            self.stop()


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text[:MAX_REASON]
