"""Output processor: turns commands into engine requests, and engine outputs into frames. Pure.

Runs on the event loop. Every stream that `admit` accepts gets exactly one terminal frame from here: `Finished` or
`Failed`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from protocol.bounds import MAX_TOKENS, clip
from protocol.commands import Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import (
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    HeldPrefix,
    Segment,
    StartedStream,
    Step,
    Tokenized,
    Usage,
)
from protocol.request import ChatInput, Sampling
from workers.checkpoints.generation_config import SamplingDefaults
from workers.engine.kv_slots import RetentionChange
from workers.engine.request import Constraint, EngineRequest
from workers.engine.sparse.kept_rows import bounds_of
from workers.engine.step_result import PromptPart, SequenceEnd, SequenceFailure, StepResult
from workers.engine.transfer.row_exchange import RowsAnswer
from workers.load_options import SparseSettings
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats
from workers.output_formats.parser import OutputParser
from workers.pooling.served_pooling import NO_POOLING, ServedPooling
from workers.process.adapters.change import AppliedChange
from workers.process.logprob_labels import LogprobLabels
from workers.process.open_sequence import OpenSequence
from workers.process.prompts.allowed_tokens import FIELD as ALLOWED_FIELD
from workers.process.prompts.allowed_tokens import restricted
from workers.process.prompts.answered_prefix import AnsweredPrefix
from workers.process.prompts.images.image_source import ImageSource
from workers.process.prompts.prompt_builder import PromptBuilder, PromptResult, TokenizedPrompt, build_or_error
from workers.process.prompts.prompt_query import answer_query
from workers.process.prompts.refusal import PromptRefused
from workers.process.prompts.request_adapter import adapter_refusal
from workers.process.stream_deadlines import StreamDeadlines
from workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from workers.grammar.compiler import GrammarCompiler

_log = structlog.get_logger("workers.process.output_processor")
_TEXT_FAILED = "the text of the answer could not be made"


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Output of one iteration of the engine thread. `step` is None if the engine had nothing to run."""

    step: StepResult | None
    ends: tuple[SequenceEnd, ...]
    """Ends of removed sequences: cancelled, or stopped by a stop string."""
    failures: tuple[SequenceFailure, ...]
    """Failures of requests that the engine refused."""
    gauges: Gauges
    retention: tuple[RetentionChange, ...] = ()
    """Changes of the rows that are retained for reuse."""
    rows: tuple[RowsAnswer, ...] = ()
    """Answers to `ReadRows` and `WriteRows`."""
    changes: tuple[AppliedChange, ...] = ()
    """Changes of adapters that have taken effect."""


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """Answer to a `Submit`: a request for the engine, or the frame that ends the stream."""

    request: EngineRequest | None
    answer: Finished | Failed | None


@dataclass(frozen=True, slots=True)
class ProcessedOutput:
    """Frames to send, in order, and streams to remove from the engine."""

    frames: list[Event]
    finish: list[int]
    """Streams in which a stop string was found; the caller finishes them in the engine."""
    text_errors: dict[int, Exception]
    """Streams that failed because of a bug in text code, with the exception; the caller cancels them in the engine."""
    prefixes: tuple[HeldPrefix, ...] = ()
    """Changes of the prefixes that are held, which no frame reports yet, as there was no step."""


class OutputProcessor:
    """Owns detokenizer or parser, stop strings, usage and deadline of each open sequence."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        max_live: int,
        clock: Callable[[], float],
        context: int = MAX_TOKENS,
        eos_ids: frozenset[int] = frozenset(),
        sampling_defaults: SamplingDefaults | None = None,
        grammars: "GrammarCompiler | None" = None,
        formats: ChosenFormats = NO_FORMATS,
        vocab_size: int = 0,
        sparse: SparseSettings | None = None,
        images: ImageSource | None = None,
        pooling: ServedPooling = NO_POOLING,
        adapters: Sequence[str] = (),
    ) -> None:
        """`max_live` limits the open sequences; more are refused with OVERLOADED. `clock` gives seconds. `context`,
        `eos_ids`, `grammars`, `formats`, `vocab_size`, `sparse`, `images` and `pooling` as in `PromptBuilder`.
        `sampling_defaults` stand for parameters that a request leaves open. `adapters` as in `RunnerCapabilities`."""
        self._vocab_size = vocab_size
        self._labels = LogprobLabels(tokenizer)
        self._prompt_builder = PromptBuilder(
            tokenizer, context, eos_ids, grammars, formats, vocab_size, sparse, images, pooling
        )
        self._sampling_defaults = sampling_defaults or {}
        self.adapters = {name: number for number, name in enumerate(adapters, 1)}
        """The numbers of adapters that requests may name. Changed by `RuntimeAdapters` as well."""
        self._max_live = max_live
        self._clock = clock
        self._live: dict[int, OpenSequence] = {}
        self._reached = 0
        self._overtaken: set[int] = set()
        """Streams before `_reached` that are not admitted yet, because their grammar is compiled."""
        self._malformed_calls = 0
        self.memory_bytes = 0
        """Resident memory of the process, as the worker last measured it."""
        self._deadlines = StreamDeadlines()

    @property
    def live(self) -> int:
        """Number of sequences without a terminal frame."""
        return len(self._live)

    def streams(self) -> list[int]:
        """Return the open sequences."""
        return list(self._live)

    def build_prompt(self, submit: Submit, wanted: Callable[[], bool] = lambda: True) -> TokenizedPrompt:
        """Build the prompt of a request, on any thread, one at a time. Stops between two images if it is not `wanted`
        any more.

        Raises as `PromptBuilder.build` does, and whatever a bug in text code raises.
        """
        return self._prompt_builder.build(submit, wanted)

    def compiled(self, prompt: TokenizedPrompt) -> bool:
        """See `PromptBuilder.compiled`."""
        return self._prompt_builder.compiled(prompt)

    def build_constraint(self, prompt: TokenizedPrompt, submit: Submit) -> Constraint | None:
        """Compile the grammar of a request, on any thread. Raises as `build_prompt` does."""
        return self._prompt_builder.constraint(prompt, submit)

    def overtake(self, stream: int) -> None:
        """Later streams may be admitted before this one, whose grammar is compiled. Until it is admitted or left,
        `Gauges.reached` stays before it."""
        self._overtaken.add(stream)

    def leave(self, stream: int) -> None:
        """A stream that was overtaken ends without being admitted."""
        self._overtaken.discard(stream)

    def has_output(self, stream: int) -> bool:
        """The stream has a new token, or has ended."""
        live = self._live.get(stream)
        return live is None or live.has_output

    def answer(self, asked: Tokenize) -> Tokenized:
        """Answer a query, on any thread, one at a time with prompts."""
        return answer_query(self._prompt_builder, asked)

    def admit(
        self,
        submit: Submit,
        prompt: PromptResult | None = None,
        arrived: float | None = None,
        constraint: "Constraint | BaseException | None" = None,
    ) -> SubmitResult:
        """Open a sequence for a request that arrived at `arrived`, by the clock.

        `prompt` is its prompt or the exception of its build, and `constraint` that of its grammar; without a prompt
        both are built here. An invalid request is answered with a `Failed` that names the field. Raises whatever a bug
        in text code raises.
        """
        stream = submit.stream
        self._overtaken.discard(stream)
        if self.full():
            return _refused(
                stream, ErrorCode.OVERLOADED, f"{len(self._live)} sequences are running or waiting already", ""
            )
        if prompt is None:
            prompt = build_or_error(self.build_prompt, submit)
            if isinstance(prompt, TokenizedPrompt):
                constraint = build_or_error(partial(self.build_constraint, prompt), submit)
        self._reached = max(self._reached, stream)
        if submit.adapter and (refused := adapter_refusal(submit, self.adapters)):
            return _refused(stream, ErrorCode.INVALID, refused, "model")
        for built in (prompt, constraint):
            if isinstance(built, PromptRefused):
                failed = Failed(stream, built.code, clip(str(built)), built.field, built.retry_after_s)
                return SubmitResult(None, failed)
            if isinstance(built, BaseException):
                raise built
        assert isinstance(prompt, TokenizedPrompt)
        assert not isinstance(constraint, BaseException)
        limits = submit.limits
        source = "messages" if isinstance(submit.input, ChatInput) else "prompt"
        resumed = len(submit.resume)
        constrained_by = "thinking_token_budget" if prompt.grammar is None else prompt.grammar.field
        if prompt.grammar is None and submit.sampling.allowed_tokens:
            constrained_by = ALLOWED_FIELD
        constraint = restricted(constraint, submit.sampling, prompt.eos, self._vocab_size)
        live = OpenSequence(prompt.eos, prompt.text, prompt.parser, source, constrained_by, len(prompt.tokens), resumed)
        live.keep_stop = limits.keep_stop
        live.top, live.prompt_top = submit.sampling.logprobs or 0, submit.prompt_logprobs or 0
        live.stop_ids, live.last_token = prompt.stop_ids, submit.resume[-1] if submit.resume else None
        live.prefix = AnsweredPrefix(prompt.prefix, submit)
        if live.ended_by_text:
            return SubmitResult(None, _stopped(stream, live))
        now = self._clock()
        since = now if arrived is None else arrived
        queue_s = since + limits.queue_ms / 1000 - now if limits.queue_ms else math.inf
        if queue_s <= 0:
            return _refused(stream, ErrorCode.QUEUE_TIMEOUT, "the request waited in the queue for too long", "")
        self._live[stream] = live
        now = self._clock()
        since = now if arrived is None else arrived
        live.tokenize_s = now - since
        if limits.deadline_ms:
            self._deadlines.add(since + limits.deadline_ms / 1000, stream)
        request = EngineRequest(
            stream,
            prompt.tokens,
            self._sampling(submit),
            limits.max_tokens,
            prompt.eos,
            submit.resume,
            tenant=submit.tenant,
            min_tokens=limits.min_tokens,
            constraint=constraint,
            grammar=prompt.grammar_name,
            bad_sequences=prompt.bad_sequences,
            breakers=prompt.breakers,
            prompt_logprobs=submit.prompt_logprobs is not None,
            urgency=submit.urgency,
            speculate=limits.speculate,
            pins=prompt.pins,
            queue_s=queue_s,
            embeddings=prompt.embeddings,
            sparse=prompt.sparse,
            example=prompt.example,
            images=prompt.images,
            pooled=prompt.pooled,
            adapter=self.adapters[submit.adapter] if submit.adapter else 0,
        )
        return SubmitResult(request, None)

    def with_reached(self, gauges: Gauges) -> Gauges:
        """Return the engine's gauges with what the engine does not know: the last stream whose prompt was built, the
        malformed tool calls, and the memory of the process."""
        reached = min(self._reached, min(self._overtaken) - 1) if self._overtaken else self._reached
        return replace(gauges, reached=reached, malformed_calls=self._malformed_calls, memory_bytes=self.memory_bytes)

    def full(self, waiting: int = 0) -> bool:
        """No further sequence fits, beside the open ones and `waiting` ones without a prompt."""
        return len(self._live) + waiting >= self._max_live

    def is_live(self, stream: int) -> bool:
        """The stream has no terminal frame yet."""
        return stream in self._live

    def process(self, output: EngineOutput) -> ProcessedOutput:
        """Return the log-probabilities of prompts, one `Step` frame for an engine step, and the terminal frames that
        follow from it."""
        done = ProcessedOutput([], [], {})
        ends, failures = output.ends, output.failures
        prefixes = self._held_prefixes(output.retention) if output.step is None else ()
        if output.step is not None:
            for part in output.step.prompt_parts:
                self._report_prompt(part, done)
            started = self._started(output.step)
            deltas = self._deltas(output.step, done)
            held = self._held_prefixes(output.retention)  # with what this step has generated
            done.frames.append(Step(deltas, self.with_reached(output.gauges), started, held))
            ends, failures = output.step.ends + ends, output.step.failures + failures
        failures += tuple(SequenceFailure(stream, ErrorCode.INTERNAL, _TEXT_FAILED) for stream in done.text_errors)
        for end in ends:
            if end.stream not in done.text_errors:
                done.frames.extend(self._end(end, done))
        for failure in failures:
            done.frames.extend(self._fail(failure))
        finish = [stream for stream in done.finish if stream in self._live]
        return ProcessedOutput(done.frames, finish, done.text_errors, prefixes)

    def expire(self) -> list[Failed]:
        """End the sequences whose deadline has passed. The caller cancels them in the engine."""
        failed = []
        for stream in self._deadlines.pop_due(self._clock()):
            live = self._live.get(stream)
            if live is not None and not live.stopped:
                del self._live[stream]
                failed.append(Failed(stream, ErrorCode.DEADLINE, "the request's deadline passed", "deadline_ms"))
        return failed

    def next_deadline(self) -> float | None:
        """Return the next deadline of an open sequence, in the clock's time."""
        return self._deadlines.next(self._live, len(self._live))

    def fail_all(self, code: ErrorCode, text: str) -> list[Failed]:
        """End all open sequences, because the worker exits."""
        failed = [Failed(stream, code, text) for stream in self._live]
        self._live.clear()
        self._deadlines.clear()
        return failed

    def _sampling(self, submit: Submit) -> Sampling:
        """Return the sampling of a request, with the defaults where it leaves parameters open."""
        defaults = self._sampling_defaults
        given = {name: defaults[name] for name in submit.unset if name in defaults}
        return replace(submit.sampling, **given) if given else submit.sampling

    def _held_prefixes(self, retention: Iterable[RetentionChange]) -> tuple[HeldPrefix, ...]:
        """Report what slots retain. Nothing is reported of a sequence that is unknown by now."""
        held = []
        for change in retention:
            live = self._live.get(change.stream)
            known = None if live is None or live.prefix is None else live.prefix.held(change)
            held.append(known or HeldPrefix(change.slot))
        return tuple(held)

    def _started(self, step: StepResult) -> tuple[StartedStream, ...]:
        """Report how sequences came to their first token, before it is added to them."""
        if not step.starts:
            return ()
        return tuple(
            StartedStream(
                each.stream,
                round(live.tokenize_s * 1e6),
                round(each.queue_s * 1e6),
                round(each.prefill_s * 1e6),
                each.prompt_tokens,
                each.cached_tokens,
                each.stored_tokens,
                bounds_of(each.kept),
                each.created_tokens,
            )
            for each in step.starts
            if (live := self._live.get(each.stream)) is not None and not live.has_output
        )

    def _deltas(self, step: StepResult, done: ProcessedOutput) -> tuple[Delta, ...]:
        touched: dict[int, OpenSequence] = {}
        for item in step.tokens:
            live = self._live.get(item.stream)
            if live is None or live.stopped or item.stream in done.text_errors:
                continue  # its end is decided, but the engine has not removed it yet
            touched[item.stream] = live
            live.completion_tokens += 1
            live.has_output = True
            live.last_token = item.token
            live.tokens.append(item.token)
            try:
                if item.logprobs is not None:
                    live.logprobs.append(self._labels.generated(item.token, item.logprobs, live.top))
                live.push(item.token)
            except Exception as error:  # noqa: BLE001  a bug in text code must end this request only
                done.text_errors[item.stream] = error
                del touched[item.stream]
                continue
            if live.text.stopped if live.text is not None else live.ended_by_text:
                live.stopped = True
                done.finish.append(item.stream)
        return tuple([live.take_delta(stream) for stream, live in touched.items()])

    def _report_prompt(self, part: PromptPart, done: ProcessedOutput) -> None:
        live = self._live.get(part.stream)
        if live is None or part.stream in done.text_errors:
            return
        try:
            done.frames.extend(self._labels.prompt(part, live.prompt_top))
        except Exception as error:  # noqa: BLE001  as in `_deltas`
            done.text_errors[part.stream] = error

    def _end(self, end: SequenceEnd, done: ProcessedOutput) -> Iterable[Finished | Failed]:
        live = self._live.get(end.stream)
        if live is None:
            return ()
        try:
            tail = live.text.finish() if live.text is not None else ""
            if live.parser is not None:
                live.segments += live.parser.finish(end.reason)
        except Exception as error:  # noqa: BLE001  as in `_deltas`
            done.text_errors[end.stream] = error
            return self._fail(SequenceFailure(end.stream, ErrorCode.INTERNAL, _TEXT_FAILED))
        del self._live[end.stream]
        segments: tuple[Segment, ...] = ()
        if live.parser is not None:
            tail, segments = live.take_parsed()
            self._count_malformed(end.stream, live.parser)
        queue, prefill, decode = (round(seconds * 1000) for seconds in (end.queue_s, end.prefill_s, end.decode_s))
        times, cached = (queue, prefill, decode), (end.cached_tokens, end.created_tokens)
        tokens = (live.prompt_tokens, live.completion_tokens)
        usage = Usage(*tokens, *times, *cached, end.kept_tokens, live.reasoning_tokens)
        reason = live.reason(end.reason)
        return (Finished(end.stream, reason, usage, (), tail, (), segments, live.stop(reason), end.vector),)

    def _count_malformed(self, stream: int, parser: OutputParser) -> None:
        """Count what began like a tool call and is text."""
        self._malformed_calls += len(parser.malformed)
        if parser.malformed:
            reasons = sorted({str(reason) for reason in parser.malformed})
            _log.info("tool_calls_malformed", stream=stream, count=len(parser.malformed), reasons=reasons)

    def _fail(self, failure: SequenceFailure) -> Iterable[Finished | Failed]:
        live = self._live.pop(failure.stream, None)
        if live is None:
            return ()
        if live.stopped:  # the answer was complete before the step that failed
            return (_stopped(failure.stream, live),)
        field = {"prompt": live.source, "constraint": live.constrained_by}.get(failure.field, failure.field)
        return (Failed(failure.stream, failure.code, clip(failure.text), field),)


def _stopped(stream: int, live: OpenSequence) -> Finished:
    """Return the end of an answer that its text has ended."""
    reason = live.reason("stop")
    usage = Usage(live.prompt_tokens, live.completion_tokens, reasoning_tokens=live.reasoning_tokens)
    return Finished(stream, reason, usage, stop=live.stop(reason))


def _refused(stream: int, code: ErrorCode, text: str, field: str) -> SubmitResult:
    return SubmitResult(None, Failed(stream, code, clip(text), field))
