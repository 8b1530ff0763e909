"""A worker without a process that computes: the worker's own request table and engine over the scripted runner.

The test says when it steps, what of a step arrives, and when it dies. So whole requests run through the real code of
both sides, and every interleaving of them can be had on purpose.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from actors.process.exit_cause import Origin
from gateway.routing.sequence import LiveSequence
from protocol.commands import Cancel, Command, ReadRows, Stop, Submit, WriteRows
from protocol.errors import ErrorCode
from protocol.events import Capabilities, Event, Failed, Finished, Gauges, Heartbeat, Logprobs, Ready, Step
from tests.gateway.harness.fakes import FakeWorker
from workers.engine.engine import BatchEngine
from workers.engine.request import RequestRefused
from workers.engine.runner import Runner
from workers.engine.step_result import SequenceEnd, SequenceFailure
from workers.engine.tier.prefix_tier import PrefixTier
from workers.engine.transfer.row_frames import refusal, rows_frame
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats
from workers.process.output_processor import EngineOutput, OutputProcessor
from workers.scripted.pooling import ScriptedPooling, scripted_pooling
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer

LETTERS = (*"aé😀e z".encode() * 3, EOS_ID)
"""Sampled tokens: characters of one, two and four bytes, mostly split between tokens, and the end of the answer."""
WIDTH = 4
"""The hidden size, of rows of embeddings."""


class EngineWorker(FakeWorker):
    """Computes what it is sent, when `step` is called."""

    def __init__(
        self,
        name: str = "w0",
        *,
        slots: int = 4,
        queue: int = 64,
        runner: Callable[[], Runner] | None = None,
        formats: ChosenFormats = NO_FORMATS,
        tokenizer: Callable[[], ByteTokenizer] = ByteTokenizer,
        clock: Callable[[], float] = time.monotonic,
        tier: Callable[[Runner], PrefixTier] | None = None,
        pooling: ScriptedPooling = "vectors",
    ) -> None:
        """`runner` makes the runner of each incarnation; without it, one of `LETTERS`. `clock` is that of its
        engine. `tier` opens the prefix tier of each incarnation. `pooling` is what the model makes of texts."""
        super().__init__(name, slots=slots, context=4096)
        self._pooling = scripted_pooling(pooling, WIDTH)
        ready = Ready(
            Capabilities(
                chat=self._pooling.generates,
                generates=self._pooling.generates,
                vector_width=self._pooling.width,
                pooling_prompts=tuple(sorted(self._pooling.prompts)),
                labels=self._pooling.labels,
                pairs=self._pooling.pairs,
                label_names=self._pooling.label_names,
            ),
            device="cpu-0",
        )
        self.status = replace(self.status, ready=ready)
        self._slots = slots
        self._queue = queue
        encoder = not self._pooling.generates
        self._runner = runner or (
            lambda: ScriptedRunner(
                slots=slots,
                alphabet=LETTERS,
                embedding_width=WIDTH,
                hidden_width=WIDTH,
                bidirectional=encoder,
            )
        )
        self._formats = formats
        self._tokenizer = tokenizer
        self._clock = clock
        self._tier = tier
        self._start()

    def _start(self) -> None:
        self.told_to_stop = False
        runner = self._runner()
        tier = None if self._tier is None else self._tier(runner)
        self.engine = BatchEngine(runner, max_queue=self._queue, step_tokens=64, clock=self._clock, tier=tier)
        rows = {"rows_format": self.engine.rows_format, "row_bytes": self.engine.capabilities.row_bytes}
        ready = replace(self.status.ready or Ready(Capabilities()), tier=self.engine.shared_tier, **rows)
        self.status = replace(self.status, ready=ready)
        self._output = OutputProcessor(
            self._tokenizer(),
            max_live=128,
            clock=lambda: 0.0,
            context=self.engine.capabilities.context,
            formats=self._formats,
            pooling=self._pooling,
        )
        self._answers: list[Event] = []

    def send_nowait(self, commands: Sequence[Command]) -> None:
        super().send_nowait(commands)
        for command in commands:
            if isinstance(command, Submit):
                self._submit(command)
            elif isinstance(command, ReadRows):
                self._answers.append(rows_frame(self.engine.read_rows(command), self.engine.rows_format))
            elif isinstance(command, WriteRows):
                refused = refusal(command, self.engine.rows_format)
                answer = refused or rows_frame(self.engine.write_rows(command), self.engine.rows_format)
                self._answers.append(answer)
            elif isinstance(command, Stop):
                self.told_to_stop = True
            elif isinstance(command, Cancel) and self._output.is_live(command.stream):
                self._end(self.engine.cancel(command.stream))

    def _submit(self, submit: Submit) -> None:
        result = self._output.admit(submit)
        if result.answer is not None:
            self._answers.append(result.answer)
        if result.request is not None:
            try:
                self.engine.submit(result.request)
            except RequestRefused as refusal:
                failure = SequenceFailure(submit.stream, refusal.code, refusal.text, refusal.field)
                self._answers += self._output.process(EngineOutput(None, (), (failure,), self.engine.gauges())).frames

    def _end(self, end: SequenceEnd | None) -> None:
        if end is not None:
            gauges, retention = self.engine.gauges(), self.engine.take_retention_changes()
            processed = self._output.process(EngineOutput(None, (end,), (), gauges, retention))
            self._answers += [*processed.frames, Heartbeat(self._output.with_reached(gauges), processed.prefixes)]

    def step(self, arrives: bool = True) -> None:
        """Compute one step; what it brings arrives at the gateway, or is on its way for ever."""
        frames, self._answers = self._answers, []
        if not self.engine.idle:
            step = self.engine.step()
            gauges, retention = self.engine.gauges(), self.engine.take_retention_changes()
            processed = self._output.process(EngineOutput(step, (), (), gauges, retention))
            frames += processed.frames
            for stream in processed.finish:
                self._end(self.engine.finish(stream))
        if arrives:
            for frame in frames:
                self.say(frame)

    def answer(self) -> None:
        """Send the results that need no step; they may cause new commands."""
        while self._answers:
            frames, self._answers = self._answers, []
            for frame in frames:
                self.say(frame)

    @contextmanager
    def muffled(self, into: list[Event]) -> Iterator[None]:
        """Collect what the worker sends instead of delivering it."""
        say = self.say
        self.say = lambda event, incarnation=None: into.append(event)  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.say = say  # type: ignore[method-assign]

    @property
    def idle(self) -> bool:
        return self.engine.idle and not self._answers

    def fail_step(self) -> None:
        """Fail a step and every sequence in it."""
        self.answer()
        ran = self._output.streams()[: self._slots]
        failed = self.status.gauges.steps_failed + 1
        self.change(gauges=Gauges(steps_failed=failed, reached=self.status.gauges.reached))
        for stream in ran:
            self.forget(stream)
            self.say(Failed(stream, ErrorCode.STEP, "no"))

    def forget(self, stream: int) -> None:
        """Remove a sequence whose step failed from the engine."""
        if self._output.is_live(stream):
            self.engine.cancel(stream)
            self._output.process(
                EngineOutput(None, (), (SequenceFailure(stream, ErrorCode.STEP, "no"),), self.engine.gauges())
            )

    def die(self, reached: int | None = None, origin: Origin = Origin.WITHIN) -> None:
        super().die(reached, origin)
        self._start()

    def restart(self) -> None:
        """Be another incarnation, without a word of the last one's end."""
        self._start()
        self.come_back()

    def leave(self, code: ErrorCode = ErrorCode.DRAINING) -> None:
        """Go with last words, after an `answer`: as a worker that was stopped, or with LOST as one that has failed."""
        for frame in self._output.fail_all(code, "the worker left: for a reason of its own"):
            self.say(frame)
        self.die()


@dataclass(frozen=True)
class Answer:
    """One choice, whole."""

    text: str
    tokens: tuple[int, ...]
    reason: str
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[Logprobs, ...] = ()


def undisturbed(submit: Submit, runner: Callable[[], Runner] | None = None) -> Answer:
    """The answer of a sequence that nothing disturbs, of a runner as that of an `EngineWorker`."""
    events: list[Event] = []
    worker = EngineWorker(runner=runner)
    worker.say = lambda event, incarnation=None: events.append(event)  # type: ignore[method-assign]
    worker.send_nowait([submit])
    while not worker.idle:
        worker.step()
    deltas = [delta for frame in events if isinstance(frame, Step) for delta in frame.deltas]
    (finished,) = [frame for frame in events if isinstance(frame, Finished)]
    text = "".join(delta.text for delta in deltas) + finished.text
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    usage, logprobs = finished.usage, tuple(each for delta in deltas for each in delta.logprobs)
    return Answer(text, tokens, finished.reason, usage.prompt_tokens, usage.completion_tokens, logprobs)


def answer_of(sequence: LiveSequence, text: str) -> Answer:
    """The gateway's record of a choice that ended well; its text was taken by the client."""
    assert sequence.usage is not None
    assert sequence.reason is not None
    usage = sequence.usage
    return Answer(text, tuple(sequence.tokens), sequence.reason, usage.prompt_tokens, usage.completion_tokens)
