"""Output processor with an engine that is stepped by hand, or with given engine outputs."""

import time
from collections.abc import Sequence
from typing import Any

from protocol.commands import Submit
from protocol.events import Delta, Event, Finished, Gauges, Step
from protocol.request import Input, Limits, Sampling, TextInput
from tests.workers.engine.harness.drafting import always, known
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.step_result import SequenceEnd, SequenceFailure, SequenceStart, StepResult, Token
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault
from workers.process.output_processor import EngineOutput, OutputProcessor, SubmitResult
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.tokenizer import Tokenizer

GAUGES = Gauges()


def submit(stream: int = 1, source: Input | str = "hello", **fields: Any) -> Submit:
    given = TextInput(source) if isinstance(source, str) else source
    limits = {name: fields.pop(name) for name in list(fields) if name in Limits.__struct_fields__}
    return Submit(stream, "request", given, fields.pop("sampling", Sampling()), Limits(**limits), **fields)


def processor(tokenizer: Tokenizer | None = None, clock: Any = lambda: 0.0, **options: Any) -> OutputProcessor:
    return OutputProcessor(tokenizer or ByteTokenizer(), max_live=options.pop("max_live", 64), clock=clock)


def request_of(result: SubmitResult) -> EngineRequest:
    assert result.request is not None, result.answer
    return result.request


def step(
    *tokens: tuple[int, int],
    ends: Sequence[SequenceEnd] = (),
    failures: Sequence[SequenceFailure] = (),
    starts: Sequence[SequenceStart] = (),
) -> EngineOutput:
    taken = tuple(Token(*token) for token in tokens)
    result = StepResult(taken, tuple(ends), tuple(failures), bool(failures), (), tuple(starts))
    return EngineOutput(result, (), (), GAUGES)


def end(stream: int = 1, reason: Any = "length", prompt: int = 5, completion: int = 1) -> SequenceEnd:
    return SequenceEnd(stream, reason, prompt, completion, 0.0104, 0.2, 3.0)


def spell(stream: int, text: bytes) -> list[tuple[int, int]]:
    return [(stream, byte) for byte in text]


class Worker:
    """Output processor and engine, stepped by hand: a worker without its process."""

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        faults: Sequence[Fault] = (),
        *,
        drafts: bool = False,
        drafted: Sequence[int] | None = None,
        **runner: Any,
    ) -> None:
        """With `drafts`, all of them are verified; those of `drafted` are these tokens of the answer."""
        make = None if drafted is None else known(drafted)
        self.runner = ScriptedRunner(slots=runner.pop("slots", 4), decode_rows=16 if drafts else 0, **runner)
        self.engine = BatchEngine(
            with_faults(self.runner, faults),
            max_queue=64,
            step_tokens=64,
            speculator=always(self.runner.capabilities, make) if drafts else None,
            clock=(lambda: 0.0) if drafts else time.monotonic,
        )
        self.processor = processor(tokenizer)
        self.frames: list[Event] = []

    def submit(self, *submits: Submit) -> None:
        for each in submits:
            result = self.processor.admit(each)
            if result.answer is not None:
                self.frames.append(result.answer)
            if result.request is not None:
                self._take(result.request)

    def _take(self, request: EngineRequest) -> None:
        try:
            self.engine.submit(request)
        except RequestRefused as refusal:
            failure = SequenceFailure(request.stream, refusal.code, refusal.text, refusal.field)
            self.frames += self.processor.process(EngineOutput(None, (), (failure,), GAUGES)).frames

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if self.engine.idle:
                return
            processed = self.processor.process(EngineOutput(self.engine.step(), (), (), self.engine.gauges()))
            self.frames += processed.frames
            for stream in processed.finish:
                ended = self.engine.finish(stream)
                if ended is not None:
                    self.frames += self.processor.process(EngineOutput(None, (ended,), (), GAUGES)).frames

    def tokens(self, stream: int) -> list[int]:
        return [token for delta in self.deltas(stream) for token in delta.tokens]

    def text(self, stream: int) -> str:
        return "".join(delta.text for delta in self.deltas(stream)) + self.finished(stream).text

    def deltas(self, stream: int) -> list[Delta]:
        steps = [frame for frame in self.frames if isinstance(frame, Step)]
        return [delta for step in steps for delta in step.deltas if delta.stream == stream]

    def finished(self, stream: int) -> Finished:
        (terminal,) = [frame for frame in self.frames if isinstance(frame, Finished) and frame.stream == stream]
        return terminal
