"""Engine on the scripted runner, with its clock and collected results, for tests of the engine."""

from collections.abc import Sequence
from typing import Any

from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.step_result import SequenceEnd, SequenceFailure
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault
from workers.scripted.runner import ScriptedRunner


def make(
    *,
    max_queue: int = 8,
    step_tokens: int = 64,
    runner: ScriptedRunner | None = None,
    faults: Sequence[Fault] = (),
    **options: Any,
) -> "Bench":
    defaults: dict[str, Any] = {"slots": 4, "context": 64, "prefill_chunks": (4, 8)}
    return Bench(runner or ScriptedRunner(**(defaults | options)), max_queue, step_tokens, faults)


class Bench:
    """An engine, its runner and its clock, with the results so far."""

    def __init__(self, runner: ScriptedRunner, max_queue: int, step_tokens: int, faults: Sequence[Fault]) -> None:
        self.runner = runner
        self.now = 0.0
        faulty = with_faults(runner, faults)
        self.engine = BatchEngine(faulty, max_queue=max_queue, step_tokens=step_tokens, clock=lambda: self.now)
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, SequenceEnd] = {}
        self.failures: dict[int, SequenceFailure] = {}

    def submit(self, stream: int, length: int = 5, **fields: Any) -> None:
        self.engine.submit(EngineRequest(stream, tuple(range(stream, stream + length)), **fields))

    def step(self) -> bool:
        result = self.engine.step()
        for item in result.tokens:
            self.tokens.setdefault(item.stream, []).append(item.token)
        for end in result.ends:
            assert end.stream not in self.ends
            self.ends[end.stream] = end
        for failure in result.failures:
            assert failure.stream not in self.failures
            self.failures[failure.stream] = failure
        return result.failed

    def run(self) -> None:
        while not self.engine.idle:
            self.step()
