"""Engine thread: inputs of one post together, idle without polling, backpressure, and an end with a reason."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from protocol.errors import ByeReason, ErrorCode
from tests.workers.engine.harness.undrafted import Undrafted
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.errors import LoadRefused
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import raising
from workers.process.engine_thread import MAX_FAILED_STEPS, MAX_UNDELIVERED, EngineThread, RemoveSequence
from workers.process.loading import Loaded
from workers.process.output_processor import EngineOutput
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

PATIENCE_S = 100.0


class Gate(ScriptedRunner):
    """Runner that waits in each prefill until the test releases it."""

    def __init__(self) -> None:
        super().__init__(slots=4)
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self.entered.release()
        assert self.open.acquire(timeout=PATIENCE_S)
        return super().prefill(chunks, specs)


class Stepping(ScriptedRunner):
    """Runner that signals each decode step."""

    def __init__(self) -> None:
        super().__init__(slots=1)
        self.stepped = threading.Semaphore(0)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.stepped.release()
        return super().decode(rows)


class Counting(BatchEngine):
    """Engine that counts the queries of `idle`, which a polling thread would make all the time."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner, max_queue=64, step_tokens=64)
        self.asked = 0
        self.closed = threading.Event()
        self.broken = False

    @property
    def idle(self) -> bool:
        self.asked += 1
        if self.broken:
            raise ValueError("a bug")
        return super().idle

    def close(self) -> None:
        super().close()
        self.closed.set()


class Loop:
    """The event loop's side, run by hand: callbacks wait in a queue until the test takes them."""

    def __init__(self, runner: Runner | None = None) -> None:
        self.engine = Counting(runner or ScriptedRunner(slots=4))
        self.callbacks: queue.Queue[Callable[[], None]] = queue.Queue()
        self.outputs: list[EngineOutput] = []
        self.events: list[Any] = []
        self.taking = True
        self.thread = EngineThread(self._load, self, self.callbacks.put)

    def _load(self, progress: Callable[[str, int, int], None]) -> Loaded:
        progress("weights", 1, 2)
        return Loaded(self.engine, None, 4096)

    def engine_progress(self, phase: str, done: int, total: int) -> None:
        self.events.append((phase, done, total))

    def engine_loaded(self, loaded: Loaded) -> None:
        self.events.append("loaded")

    def engine_output_ready(self) -> None:
        if self.taking:
            self.outputs.extend(self.thread.take_outputs())

    def engine_down(self, reason: ByeReason, text: str) -> None:
        self.events.append((reason, text))

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.callbacks.get(timeout=PATIENCE_S)()

    def start(self) -> None:
        self.thread.start()
        self.until(lambda: "loaded" in self.events)

    def end(self) -> None:
        self.thread.stop()
        assert self.thread.join(PATIENCE_S)


def request(stream: int, tokens: int = 3) -> EngineRequest:
    return EngineRequest(stream, (97, 98), max_tokens=tokens)


def ended(loop: Loop) -> list[int]:
    return [end.stream for output in loop.outputs if output.step for end in output.step.ends]


def test_a_whole_life() -> None:
    loop = Loop()
    loop.start()
    assert loop.events == [("weights", 1, 2), "loaded"]
    loop.thread.post([request(1), request(2)])
    loop.until(lambda: len(ended(loop)) == 2)
    assert loop.outputs[-1].gauges.sequences_completed == 2
    loop.end()
    assert loop.engine.closed.is_set()


def test_inputs_of_one_post_start_in_the_same_step() -> None:
    loop = Loop()
    loop.start()
    loop.thread.post([request(stream) for stream in range(4)])
    loop.until(lambda: len(ended(loop)) == 4)
    assert loop.outputs[0].step is not None
    assert {token.stream for token in loop.outputs[0].step.tokens} == {0, 1, 2, 3}
    loop.end()


def test_inputs_posted_during_a_step_are_taken_before_the_next() -> None:
    gate = Gate()
    loop = Loop(gate)
    loop.start()
    loop.thread.post([request(1)])
    assert gate.entered.acquire(timeout=PATIENCE_S)
    loop.thread.post([request(2), RemoveSequence(1), RemoveSequence(7)])
    gate.open.release(2)
    loop.until(lambda: ended(loop) == [2])
    cancelled = [end for output in loop.outputs for end in output.ends]
    assert [(end.stream, end.reason) for end in cancelled] == [(1, "cancelled")]
    loop.end()


def test_finish_ends_with_the_reason_stop() -> None:
    loop = Loop()
    loop.start()
    loop.thread.post([request(1, 4000), RemoveSequence(1, finish=True)])
    loop.until(lambda: loop.outputs)
    (end,) = loop.outputs[0].ends
    assert (end.reason, loop.outputs[0].step) == ("stop", None)
    loop.end()


def test_a_refused_request_is_a_failure() -> None:
    loop = Loop()
    loop.start()
    loop.thread.post([EngineRequest(1, ()), EngineRequest(2, (999,))])
    loop.until(lambda: loop.outputs)
    assert [(f.stream, f.code, f.field) for f in loop.outputs[0].failures] == [
        (1, ErrorCode.INVALID, "prompt"),
        (2, ErrorCode.INVALID, "prompt"),
    ]
    loop.end()


def test_a_bug_in_submit_fails_one_request_only() -> None:
    class Defective(Undrafted):
        """Constraint with a bug."""

        ended: bool | None = None

        def accept(self, token: int) -> None:
            raise AssertionError

        def mask(self) -> NDArray[np.uint32]:
            raise KeyError("a bug")

    loop = Loop()
    loop.start()
    loop.thread.post([request(1), replace(request(2), constraint=Defective()), request(3)])
    loop.until(lambda: len(ended(loop)) == 2)
    assert ended(loop) == [1, 3]
    assert [(f.stream, f.code) for f in loop.outputs[0].failures] == [(2, ErrorCode.INTERNAL)]
    loop.end()


def test_an_idle_thread_does_not_poll() -> None:
    loop = Loop()
    loop.start()
    loop.thread.post([request(1)])
    loop.until(lambda: ended(loop))
    loop.thread.post([RemoveSequence(99)])
    loop.until(lambda: loop.outputs[-1].step is None)
    asked = loop.engine.asked
    loop.end()
    assert loop.engine.asked <= asked + 2


def test_outputs_that_are_not_taken_stop_the_engine() -> None:
    runner = Stepping()
    loop = Loop(runner)
    loop.start()
    loop.taking = False
    loop.thread.post([request(1, MAX_UNDELIVERED + 11)])  # the first step samples two tokens
    for _ in range(MAX_UNDELIVERED):
        assert runner.stepped.acquire(timeout=PATIENCE_S)
    assert not runner.stepped.acquire(timeout=0.05)
    assert loop.callbacks.qsize() == 1, "one callback until the outputs are taken"
    loop.taking = True
    loop.until(lambda: ended(loop) == [1])
    assert len(loop.outputs) == MAX_UNDELIVERED + 10
    loop.end()


def test_ten_failed_steps_in_a_row_end_it() -> None:
    loop = Loop(with_faults(ScriptedRunner(slots=1), raising(range(1, 100))))
    loop.start()
    loop.thread.post([request(stream) for stream in range(20)])
    loop.until(lambda: len(loop.events) == 3)
    assert loop.events[-1] == (ByeReason.STEPS_FAILED, f"{MAX_FAILED_STEPS} engine steps in a row failed")
    assert len(loop.outputs) == MAX_FAILED_STEPS
    assert loop.thread.join(PATIENCE_S)
    assert loop.engine.closed.is_set()


def test_nine_failed_steps_do_not_end_the_worker() -> None:
    loop = Loop(with_faults(ScriptedRunner(slots=1), raising(range(1, MAX_FAILED_STEPS))))
    loop.start()
    loop.thread.post([request(stream) for stream in range(MAX_FAILED_STEPS)])
    loop.until(lambda: ended(loop) == [MAX_FAILED_STEPS - 1])
    loop.end()


@pytest.mark.parametrize(
    ("error", "reason", "traced"),
    [(OSError, ByeReason.LOAD_FAILED, True), (LoadRefused, ByeReason.LOAD_REFUSED, False)],
)
def test_a_failed_load_is_reported_with_its_reason(error: type[Exception], reason: ByeReason, traced: bool) -> None:
    loop = Loop()

    def fail(_: object) -> Loaded:
        raise error("no such model")

    with structlog.testing.capture_logs() as logs:
        loop.thread = EngineThread(fail, loop, loop.callbacks.put)
        loop.thread.start()
        loop.until(lambda: loop.events)
    assert loop.events == [(reason, "no such model")]
    assert [entry["log_level"] for entry in logs] == ["error" if traced else "info"]
    assert [bool(entry.get("exc_info")) for entry in logs] == [traced]


def test_a_panic_of_native_code_is_reported() -> None:
    class Panic(BaseException):
        """Like pyo3's, which is no `Exception`."""

    loop = Loop()

    def panics(progress: object) -> Loaded:
        raise Panic("index out of bounds")

    loop.thread = EngineThread(panics, loop, loop.callbacks.put)
    with structlog.testing.capture_logs():
        loop.thread.start()
        loop.until(lambda: loop.events)
        assert loop.thread.join(PATIENCE_S)
    assert loop.events == [(ByeReason.LOAD_FAILED, "index out of bounds")]
    assert loop.thread.join(PATIENCE_S)


def test_a_bug_is_reported_as_internal_error() -> None:
    loop = Loop()
    loop.start()
    loop.engine.broken = True
    loop.thread.post([request(1)])
    loop.until(lambda: len(loop.events) == 3)
    assert loop.events[-1] == (ByeReason.INTERNAL, "a bug")
    assert loop.thread.join(PATIENCE_S)
    assert loop.engine.closed.is_set()


def test_a_closed_loop_ends_the_thread() -> None:
    loop = Loop()

    def closed(_: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    loop.thread = EngineThread(loop._load, loop, closed)
    loop.thread.start()
    assert loop.thread.join(PATIENCE_S)


def test_a_thread_that_never_started_has_ended() -> None:
    assert Loop().thread.join(0.0)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with structlog.testing.capture_logs():
        yield
