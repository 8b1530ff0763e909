"""Output processor: turns commands into engine requests, and engine outputs into frames. Pure.

Runs on the event loop. Every stream that `admit` accepts gets exactly one terminal frame from here: `Finished` or
`Failed`.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.bounds import MAX_PIECE_BYTES, MAX_TOKENS, clip
from protocol.commands import Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Gauges, Logprobs, Step, Tokenized, TokenLogprob, Usage
from protocol.request import ChatInput, FinishReason
from workers.engine.request import EngineRequest
from workers.engine.step_result import SequenceEnd, SequenceFailure, StepResult
from workers.process.prompt_builder import PromptBuilder, PromptRefused, PromptResult, TokenizedPrompt, build_or_error
from workers.process.prompt_query import answer_query
from workers.sampling.logprobs import RowLogprobs
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.tokenizer import Tokenizer

_SPARE_DEADLINES = 64
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


@dataclass(slots=True)
class _OpenSequence:
    """One sequence from its admission to its terminal frame."""

    eos: frozenset[int]
    text: IncrementalDetokenizer | None
    """None for a model without a tokenizer."""
    source: str
    """The request field of the prompt."""
    prompt_tokens: int
    completion_tokens: int
    stopped: bool = False
    """A stop string was found: later tokens are dropped."""
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    top: int = 0
    """Number of most likely tokens to report with each token."""
    logprobs: list[Logprobs] = field(default_factory=list)


class OutputProcessor:
    """Owns detokenizer, stop strings, usage and deadline of each open sequence."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        max_live: int,
        clock: Callable[[], float],
        context: int = MAX_TOKENS,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`max_live` limits the open sequences; more are refused with OVERLOADED. `clock` gives seconds. `context` and
        `eos_ids` as in `PromptBuilder`."""
        self._tokenizer = tokenizer
        self._prompt_builder = PromptBuilder(tokenizer, context, eos_ids)
        self._max_live = max_live
        self._clock = clock
        self._live: dict[int, _OpenSequence] = {}
        self._reached = 0
        self._deadlines: list[tuple[float, int]] = []

    @property
    def live(self) -> int:
        """Number of sequences without a terminal frame."""
        return len(self._live)

    def streams(self) -> list[int]:
        """Return the open sequences."""
        return list(self._live)

    def build_prompt(self, submit: Submit) -> TokenizedPrompt:
        """Build the prompt of a request, on any thread, one at a time.

        Raises `PromptRefused`, and whatever a bug in text code raises.
        """
        return self._prompt_builder.build(submit)

    def answer(self, asked: Tokenize) -> Tokenized:
        """Answer a query, on any thread, one at a time with prompts."""
        return answer_query(self._prompt_builder, asked)

    def admit(self, submit: Submit, prompt: PromptResult | None = None, arrived: float | None = None) -> SubmitResult:
        """Open a sequence for a request that arrived at `arrived`, by the clock.

        `prompt` is its prompt or the exception of its build; without it the prompt is built here. An invalid request is
        answered with a `Failed` that names the field. Raises whatever a bug in text code raises.
        """
        stream = submit.stream
        if self.full():
            return _refused(
                stream, ErrorCode.OVERLOADED, f"{len(self._live)} sequences are running or waiting already", ""
            )
        prompt = prompt or build_or_error(self.build_prompt, submit)
        self._reached = stream
        if isinstance(prompt, PromptRefused):
            return _refused(stream, prompt.code, str(prompt), prompt.field)
        if isinstance(prompt, BaseException):
            raise prompt
        text, limits = prompt.text, submit.limits
        source = "messages" if isinstance(submit.input, ChatInput) else "prompt"
        resumed = len(submit.resume)
        live = _OpenSequence(prompt.eos, text, source, len(prompt.tokens), resumed, top=submit.sampling.logprobs or 0)
        if text is not None and text.stopped:
            return SubmitResult(None, Finished(stream, "stop", Usage(live.prompt_tokens, live.completion_tokens)))
        self._live[stream] = live
        if limits.deadline_ms:
            since = self._clock() if arrived is None else arrived
            heapq.heappush(self._deadlines, (since + limits.deadline_ms / 1000, stream))
        request = EngineRequest(
            stream,
            prompt.tokens,
            submit.sampling,
            limits.max_tokens,
            prompt.eos,
            submit.resume,
            tenant=submit.tenant,
            min_tokens=limits.min_tokens,
        )
        return SubmitResult(request, None)

    def with_reached(self, gauges: Gauges) -> Gauges:
        """Return the engine's gauges with the last stream whose prompt was built, which the engine does not know."""
        return replace(gauges, reached=self._reached)

    def full(self, waiting: int = 0) -> bool:
        """No further sequence fits, beside the open ones and `waiting` ones without a prompt."""
        return len(self._live) + waiting >= self._max_live

    def is_live(self, stream: int) -> bool:
        """The stream has no terminal frame yet."""
        return stream in self._live

    def process(self, output: EngineOutput) -> ProcessedOutput:
        """Return one `Step` frame for an engine step, then the terminal frames that follow from it."""
        done = ProcessedOutput([], [], {})
        ends, failures = output.ends, output.failures
        if output.step is not None:
            deltas = self._deltas(output.step, done)
            done.frames.append(Step(deltas, self.with_reached(output.gauges)))
            ends, failures = output.step.ends + ends, output.step.failures + failures
        failures += tuple(SequenceFailure(stream, ErrorCode.INTERNAL, _TEXT_FAILED) for stream in done.text_errors)
        for end in ends:
            if end.stream not in done.text_errors:
                done.frames.extend(self._end(end, done))
        for failure in failures:
            done.frames.extend(self._fail(failure))
        return ProcessedOutput(
            done.frames, [stream for stream in done.finish if stream in self._live], done.text_errors
        )

    def expire(self) -> list[Failed]:
        """End the sequences whose deadline has passed. The caller cancels them in the engine."""
        now, failed = self._clock(), []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, stream = heapq.heappop(self._deadlines)
            live = self._live.get(stream)
            if live is not None and not live.stopped:
                del self._live[stream]
                failed.append(Failed(stream, ErrorCode.DEADLINE, "the request's deadline passed", "deadline_ms"))
        return failed

    def next_deadline(self) -> float | None:
        """Return the next deadline of an open sequence, in the clock's time."""
        if (
            len(self._deadlines) > 2 * len(self._live) + _SPARE_DEADLINES
        ):  # deadlines of ended sequences must not accumulate
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._live]
            heapq.heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][1] not in self._live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def fail_all(self, code: ErrorCode, text: str) -> list[Failed]:
        """End all open sequences, because the worker exits."""
        failed = [Failed(stream, code, text) for stream in self._live]
        self._live.clear()
        self._deadlines.clear()
        return failed

    def _deltas(self, step: StepResult, done: ProcessedOutput) -> tuple[Delta, ...]:
        touched: dict[int, _OpenSequence] = {}
        for item in step.tokens:
            live = self._live.get(item.stream)
            if live is None or live.stopped or item.stream in done.text_errors:
                continue  # its end is decided, but the engine has not removed it yet
            touched[item.stream] = live
            live.completion_tokens += 1
            live.tokens.append(item.token)
            try:
                if item.logprobs is not None:
                    live.logprobs.append(self._logprobs(item.token, item.logprobs, live.top))
                if live.text is not None and item.token not in live.eos:
                    live.pieces.append(live.text.push(item.token))
            except Exception as error:  # noqa: BLE001  a bug in text code must end this request only
                done.text_errors[item.stream] = error
                del touched[item.stream]
                continue
            if live.text is not None and live.text.stopped:
                live.stopped = True
                done.finish.append(item.stream)
        deltas = []
        for stream, live in touched.items():
            deltas.append(Delta(stream, tuple(live.tokens), "".join(live.pieces), tuple(live.logprobs)))
            live.tokens.clear()
            live.pieces.clear()
            live.logprobs.clear()
        return tuple(deltas)

    def _logprobs(self, token: int, logprobs: RowLogprobs, count: int) -> Logprobs:
        """Return the report of one token, with the bytes of the tokens in it."""
        top = zip(logprobs.tokens[:count], logprobs.logprobs, strict=False)
        likely = (TokenLogprob(other, logprob, self._label(other)) for other, logprob in top)
        return Logprobs(TokenLogprob(token, logprobs.logprob, self._label(token)), tuple(likely))

    def _label(self, token: int) -> bytes:
        return b"" if self._tokenizer is None else self._tokenizer.label(token)[:MAX_PIECE_BYTES]

    def _end(self, end: SequenceEnd, done: ProcessedOutput) -> Iterable[Finished | Failed]:
        live = self._live.get(end.stream)
        if live is None:
            return ()
        try:
            tail = live.text.finish() if live.text is not None else ""
        except Exception as error:  # noqa: BLE001  as in `_deltas`
            done.text_errors[end.stream] = error
            return self._fail(SequenceFailure(end.stream, ErrorCode.INTERNAL, _TEXT_FAILED))
        del self._live[end.stream]
        reason: FinishReason = "stop" if live.stopped or (live.text is not None and live.text.stopped) else end.reason
        queue, prefill, decode = (round(seconds * 1000) for seconds in (end.queue_s, end.prefill_s, end.decode_s))
        usage = Usage(live.prompt_tokens, live.completion_tokens, queue, prefill, decode, end.cached_tokens)
        return (Finished(end.stream, reason, usage, (), tail),)

    def _fail(self, failure: SequenceFailure) -> Iterable[Finished | Failed]:
        live = self._live.pop(failure.stream, None)
        if live is None:
            return ()
        if live.stopped:  # the answer was complete before the step that failed
            return (Finished(failure.stream, "stop", Usage(live.prompt_tokens, live.completion_tokens)),)
        field = live.source if failure.field == "prompt" else failure.field
        return (Failed(failure.stream, failure.code, clip(failure.text), field),)


def _refused(stream: int, code: ErrorCode, text: str, field: str) -> SubmitResult:
    return SubmitResult(None, Failed(stream, code, clip(text), field))
