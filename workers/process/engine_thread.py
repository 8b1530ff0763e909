"""Engine thread: the one thread that loads and runs the engine, and its exchange with the event loop."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from protocol.bounds import MAX_REASON
from protocol.commands import ReadRows, WriteRows
from protocol.errors import ByeReason, ErrorCode
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.step_result import SequenceEnd, SequenceFailure
from workers.engine.transfer.row_exchange import RowsAnswer
from workers.errors import LoadRefused
from workers.load_options import Progress
from workers.process.adapters.change import AdapterChange, AppliedChange
from workers.process.loading import Loaded
from workers.process.output_processor import EngineOutput

MAX_FAILED_STEPS = 10
"""Consecutive failed steps after which the worker exits, so that its supervisor restarts it."""
MAX_UNDELIVERED = 64
"""Maximum number of outputs that the loop has not taken. At this bound the engine waits: backpressure."""


@dataclass(frozen=True, slots=True)
class RemoveSequence:
    """Removes a sequence from the engine. `finish` if a stop string was found; otherwise it is cancelled."""

    stream: int
    finish: bool = False


EngineInput = EngineRequest | RemoveSequence | ReadRows | WriteRows | AdapterChange


class EngineListener(Protocol):
    """Callbacks of the engine thread, called in order on the event loop's thread."""

    def engine_progress(self, phase: str, done: int, total: int) -> None:
        """The load has progressed to `done` of `total` units of `phase`."""

    def engine_loaded(self, loaded: Loaded) -> None:
        """The model is loaded, and the engine accepts inputs."""

    def engine_output_ready(self) -> None:
        """Outputs wait for `take_outputs`. Called once until they are taken."""

    def engine_down(self, reason: ByeReason, text: str) -> None:
        """The thread has ended by itself: loading or too many steps failed, or there is a bug."""


class EngineThread:
    """Blocks while there is nothing to do, and never polls. All inputs of one `post` are taken before the next step."""

    def __init__(
        self,
        load: Callable[[Progress], Loaded],
        listener: EngineListener,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`load` runs on the thread. `call_soon` passes a callback to the loop, like `loop.call_soon_threadsafe`."""
        self._load = load
        self._listener = listener
        self._call_soon = call_soon
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # Guards the following fields; notified when either side may have work.
        self._changed = threading.Condition()
        self._inbox: list[EngineInput] = []
        self._outputs: list[EngineOutput] = []
        self._stopping = False

    def start(self) -> None:
        """Start the thread, which loads the model."""
        self._thread.start()

    def post(self, inputs: Sequence[EngineInput]) -> None:
        """Pass inputs to the engine together. Called on the loop."""
        with self._changed:
            self._inbox.extend(inputs)
            self._changed.notify_all()

    def stop(self) -> None:
        """Ask the thread to close the engine and end, after its current step."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; false if it is still inside a call of the device."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take_outputs(self) -> Sequence[EngineOutput]:
        """Return all outputs since the last call, in order."""
        with self._changed:
            outputs, self._outputs = self._outputs, []
            if len(outputs) >= MAX_UNDELIVERED:
                self._changed.notify_all()
        return outputs

    def _run(self) -> None:
        try:
            loaded = self._load(self._report)
        except BaseException as error:  # noqa: BLE001  any error of a backend; a panic of Rust code is no Exception
            text = _sentence(error)
            refused = isinstance(error, LoadRefused)
            if refused:  # the gateway shows this text to the operator
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
        except BaseException as error:  # noqa: BLE001  a bug must reach the gateway as a reason to exit
            self._log.error("engine_failed", exc_info=error)
            self._down(ByeReason.INTERNAL, _sentence(error))

    def _serve(self, engine: BatchEngine) -> None:
        while True:
            with self._changed:
                while not self._stopping and (
                    len(self._outputs) >= MAX_UNDELIVERED or (not self._inbox and engine.idle)
                ):
                    self._changed.wait()
                if self._stopping:
                    return
                inputs, self._inbox = self._inbox, []
            self._publish(self._run_iteration(engine, inputs))
            if engine.failures_in_a_row >= MAX_FAILED_STEPS:
                self._down(ByeReason.STEPS_FAILED, f"{engine.failures_in_a_row} engine steps in a row failed")
                return

    def _run_iteration(self, engine: BatchEngine, inputs: Sequence[EngineInput]) -> EngineOutput:
        """Take all inputs, then run one step."""
        ends: list[SequenceEnd] = []
        failures: list[SequenceFailure] = []
        answers: list[RowsAnswer] = []
        changes: list[AppliedChange] = []
        for engine_input in inputs:
            if isinstance(engine_input, EngineRequest):
                try:
                    engine.submit(engine_input)
                except RequestRefused as refusal:
                    failures.append(SequenceFailure(engine_input.stream, refusal.code, refusal.text, refusal.field))
                except Exception as error:  # noqa: BLE001 - a bug that one request triggers must end that request only
                    self._log.error("submit_failed", stream=engine_input.stream, exc_info=error)
                    text = f"the request could not be queued: {type(error).__name__}"
                    failures.append(SequenceFailure(engine_input.stream, ErrorCode.INTERNAL, text))
            elif isinstance(engine_input, ReadRows):
                answers.append(engine.read_rows(engine_input))
            elif isinstance(engine_input, WriteRows):
                answers.append(engine.write_rows(engine_input))
            elif isinstance(engine_input, AdapterChange):
                changes.append(_applied(engine_input))
            else:
                end = engine.finish(engine_input.stream) if engine_input.finish else engine.cancel(engine_input.stream)
                if end is not None:
                    ends.append(end)
        step = None if engine.idle else engine.step()
        retention = engine.take_retention_changes()
        return EngineOutput(
            step, tuple(ends), tuple(failures), engine.gauges(), retention, tuple(answers), tuple(changes)
        )

    def _publish(self, output: EngineOutput) -> None:
        with self._changed:
            self._outputs.append(output)
            first = len(self._outputs) == 1
        if first:  # otherwise the callback is scheduled already
            self._hand(self._listener.engine_output_ready)

    def _report(self, phase: str, done: int, total: int) -> None:
        self._hand(lambda: self._listener.engine_progress(phase, done, total))

    def _down(self, reason: ByeReason, text: str) -> None:
        self._hand(lambda: self._listener.engine_down(reason, text))

    def _hand(self, callback: Callable[[], None]) -> None:
        try:
            self._call_soon(callback)
        except RuntimeError:  # the loop is closed: the process is about to exit
            self.stop()


def _applied(change: AdapterChange) -> AppliedChange:
    try:
        change.apply()
    except Exception as error:  # noqa: BLE001  the gateway tells the client, and the worker serves on
        structlog.get_logger().error("adapter_failed", exc_info=error)
        return AppliedChange(change.query, _sentence(error))
    return AppliedChange(change.query)


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text[:MAX_REASON]
