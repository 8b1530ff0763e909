"""The request table: commands become engine requests, and what the engine brings becomes frames. Pure.

Owned by the event loop's side of the worker. Every stream that `admit` lets in gets exactly one terminal frame from
here: `Finished` or `Failed`.
"""

import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.bounds import MAX_PIECE_BYTES, MAX_TOKENS, clip
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Gauges, Likely, Logprobs, Step, Usage
from protocol.request import ChatInput, FinishReason, Input, TextInput
from workers.request import End, Failure, Request, StepResult
from workers.runner import TokenLogprobs
from workers.text.budget import TemplateError
from workers.text.stream import TextStream
from workers.text.vocabulary import Chat, Vocabulary

_SPARE_DEADLINES = 64
_DEFECT = "the text of the answer could not be made"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one turn of the engine thread brought. `step` is None when the engine had nothing to run."""

    step: StepResult | None
    ends: tuple[End, ...]
    """Of sequences that were taken out: cancelled, or stopped by a stop string."""
    failures: tuple[Failure, ...]
    """Of sequences that the engine did not take."""
    gauges: Gauges


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer to a `Submit`: a request for the engine, or the frame that ends it here."""

    request: Request | None
    answer: Finished | Failed | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Frames to send, in order, and what the engine is to hear of it."""

    frames: list[Event]
    finish: list[int]
    """Streams in which a stop string was found."""
    defects: dict[int, Exception]
    """Streams whose text could not be made, and why. They have failed; the engine is to let go of them."""


@dataclass(slots=True)
class _Live:
    """One sequence from its admission to its terminal frame."""

    eos: frozenset[int]
    text: TextStream | None
    """None when the model has no tokenizer."""
    source: str
    """What the client calls its prompt."""
    prompt_tokens: int
    completion_tokens: int
    stopped: bool = False
    """A stop string was found: what the engine still brings is dropped."""
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    top: int = 0
    """Most likely tokens to report with each, when the runner reports any."""
    logprobs: list[Logprobs] = field(default_factory=list)


class _Refused(Exception):
    """Raised while a prompt is made: the request ends before any work."""

    def __init__(self, code: ErrorCode, text: str, field: str) -> None:
        super().__init__(text)
        self.code = code
        self.field = field


class Delivery:
    """Detokenizer, stop strings, usage and deadline of each live sequence."""

    def __init__(
        self, vocabulary: Vocabulary | None, *, max_live: int, clock: Callable[[], float], context: int = MAX_TOKENS
    ) -> None:
        """`max_live` bounds the table; what is over it is refused with OVERLOADED. `clock` gives seconds. Text that
        cannot fit into `context` tokens is refused before it is tokenized."""
        self._vocabulary = vocabulary
        self._context = context
        self._max_live = max_live
        self._clock = clock
        self._live: dict[int, _Live] = {}
        self._deadlines: list[tuple[float, int]] = []

    @property
    def live(self) -> int:
        """Sequences that have no terminal frame yet."""
        return len(self._live)

    def streams(self) -> list[int]:
        """The live sequences."""
        return list(self._live)

    def admit(self, submit: Submit) -> Admitted:
        """Make the prompt and open an entry. Whatever is wrong with the request is a `Failed` that names the field."""
        stream = submit.stream
        if len(self._live) >= self._max_live:
            return _refused(stream, ErrorCode.OVERLOADED, f"{len(self._live)} sequences are live or wait already", "")
        try:
            prompt = self._prompt(submit.input)
            text = self._text(submit, prompt)
        except _Refused as refusal:
            return _refused(stream, refusal.code, str(refusal), refusal.field)
        eos = self._vocabulary.eos_ids if self._vocabulary and not submit.limits.ignore_eos else frozenset()
        source = "messages" if isinstance(submit.input, ChatInput) else "prompt"
        live = _Live(eos, text, source, len(prompt), len(submit.resume), top=submit.sampling.logprobs or 0)
        for token in submit.resume:
            # The client has this text already; what was held back of it comes with the next token.
            if text is not None and token not in eos:
                text.push(token)
        if text is not None and text.stopped:
            return Admitted(None, Finished(stream, "stop", Usage(live.prompt_tokens, live.completion_tokens)))
        self._live[stream] = live
        if submit.limits.deadline_ms:
            heapq.heappush(self._deadlines, (self._clock() + submit.limits.deadline_ms / 1000, stream))
        limits = submit.limits
        request = Request(
            stream,
            prompt,
            submit.sampling,
            limits.max_tokens,
            eos,
            submit.resume,
            tenant=submit.tenant,
            min_tokens=limits.min_tokens,
        )
        return Admitted(request, None)

    def is_live(self, stream: int) -> bool:
        return stream in self._live

    def deliver(self, outcome: Outcome) -> Delivered:
        """One `Step` frame for an engine step, then the terminal frames that follow from it."""
        done = Delivered([], [], {})
        ends, failures = outcome.ends, outcome.failures
        if outcome.step is not None:
            deltas = self._deltas(outcome.step, done)
            done.frames.append(Step(deltas, outcome.gauges))
            ends, failures = outcome.step.ends + ends, outcome.step.failures + failures
        failures += tuple(Failure(stream, ErrorCode.INTERNAL, _DEFECT) for stream in done.defects)
        for end in ends:
            if end.stream not in done.defects:
                done.frames.extend(self._end(end, done))
        for failure in failures:
            done.frames.extend(self._fail(failure))
        return Delivered(done.frames, [stream for stream in done.finish if stream in self._live], done.defects)

    def expire(self) -> list[Failed]:
        """End the sequences whose deadline has passed. The engine is to cancel them."""
        now, failed = self._clock(), []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, stream = heapq.heappop(self._deadlines)
            live = self._live.get(stream)
            if live is not None and not live.stopped:
                del self._live[stream]
                failed.append(Failed(stream, ErrorCode.DEADLINE, "the request's deadline passed", "deadline_ms"))
        return failed

    def next_deadline(self) -> float | None:
        """The clock's time of the next deadline of a live sequence."""
        if len(self._deadlines) > 2 * len(self._live) + _SPARE_DEADLINES:  # those of ended sequences must not pile up
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._live]
            heapq.heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][1] not in self._live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def fail_all(self, code: ErrorCode, text: str) -> list[Failed]:
        """End everything that is live, because the worker leaves."""
        failed = [Failed(stream, code, text) for stream in self._live]
        self._live.clear()
        self._deadlines.clear()
        return failed

    def _prompt(self, source: Input) -> tuple[int, ...]:
        if isinstance(source, TextInput):
            return self._encode(self._require_text("prompt"), source.text, "prompt", special=True)
        if isinstance(source, ChatInput):
            vocabulary = self._require_text("messages")
            if vocabulary.chat is None:
                raise _Refused(ErrorCode.UNSUPPORTED, "the model has no chat template", "messages")
            # The template spells the special tokens out itself.
            return self._encode(vocabulary, _render(vocabulary.chat, source), "messages", special=False)
        return source.tokens

    def _encode(self, vocabulary: Vocabulary, text: str, field: str, *, special: bool) -> tuple[int, ...]:
        if len(text) > self._context * vocabulary.longest_token:  # megabytes would hold every other stream up
            problem = f"{field} of {len(text)} characters cannot fit into a context of {self._context} tokens"
            raise _Refused(ErrorCode.CONTEXT, problem, field)
        return tuple(vocabulary.encode(text, special=special))

    def _text(self, submit: Submit, prompt: tuple[int, ...]) -> TextStream | None:
        if self._vocabulary is None:
            if submit.limits.stop:
                raise _Refused(ErrorCode.UNSUPPORTED, "the model has no tokenizer: stop strings need one", "stop")
            return None
        # An answer in a chat begins a text of its own; any other goes on with its prompt's.
        context = () if isinstance(submit.input, ChatInput) else prompt
        return TextStream(self._vocabulary, context, submit.limits.stop)

    def _require_text(self, field: str) -> Vocabulary:
        if self._vocabulary is None:
            raise _Refused(ErrorCode.UNSUPPORTED, "the model has no tokenizer: give the prompt as token ids", field)
        return self._vocabulary

    def _deltas(self, step: StepResult, done: Delivered) -> tuple[Delta, ...]:
        touched: dict[int, _Live] = {}
        for item in step.tokens:
            live = self._live.get(item.stream)
            if live is None or live.stopped or item.stream in done.defects:
                continue  # its terminal frame is sent or decided, and the engine has not heard of it yet
            touched[item.stream] = live
            live.completion_tokens += 1
            live.tokens.append(item.token)
            try:
                if item.logprobs is not None:
                    live.logprobs.append(self._logprobs(item.token, item.logprobs, live.top))
                if live.text is not None and item.token not in live.eos:
                    live.pieces.append(live.text.push(item.token))
            except Exception as error:  # noqa: BLE001  a defect in text code must end this request only
                done.defects[item.stream] = error
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

    def _logprobs(self, token: int, logprobs: TokenLogprobs, count: int) -> Logprobs:
        """The report of one token, with the bytes of those that it names."""
        top = zip(logprobs.tokens[:count], logprobs.logprobs, strict=False)
        likely = (Likely(other, logprob, self._label(other)) for other, logprob in top)
        return Logprobs(Likely(token, logprobs.logprob, self._label(token)), tuple(likely))

    def _label(self, token: int) -> bytes:
        return b"" if self._vocabulary is None else self._vocabulary.label(token)[:MAX_PIECE_BYTES]

    def _end(self, end: End, done: Delivered) -> Iterable[Finished | Failed]:
        live = self._live.get(end.stream)
        if live is None:
            return ()
        try:
            tail = live.text.finish() if live.text is not None else ""
        except Exception as error:  # noqa: BLE001  as in `_deltas`
            done.defects[end.stream] = error
            return self._fail(Failure(end.stream, ErrorCode.INTERNAL, _DEFECT))
        del self._live[end.stream]
        reason: FinishReason = "stop" if live.stopped or (live.text is not None and live.text.stopped) else end.reason
        queue, prefill, decode = (round(seconds * 1000) for seconds in (end.queue_s, end.prefill_s, end.decode_s))
        usage = Usage(live.prompt_tokens, live.completion_tokens, queue, prefill, decode, end.cached_tokens)
        return (Finished(end.stream, reason, usage, (), tail),)

    def _fail(self, failure: Failure) -> Iterable[Finished | Failed]:
        live = self._live.pop(failure.stream, None)
        if live is None:
            return ()
        if live.stopped:  # the answer was complete before the step that failed
            return (Finished(failure.stream, "stop", Usage(live.prompt_tokens, live.completion_tokens)),)
        field = live.source if failure.field == "prompt" else failure.field
        return (Failed(failure.stream, failure.code, clip(failure.text), field),)


def _refused(stream: int, code: ErrorCode, text: str, field: str) -> Admitted:
    return Admitted(None, Failed(stream, code, clip(text), field))


def _render(chat: Chat, source: ChatInput) -> str:
    tools = _tools(source.tools_json)
    if tools and not chat.takes_tools:
        raise _Refused(ErrorCode.UNSUPPORTED, "the model's chat template has no place for tools", "tools")
    messages = [{"role": message.role, "content": message.content} for message in source.messages]
    try:
        return chat.render(messages, tools, now=source.now)
    except TemplateError as error:
        raise _Refused(ErrorCode.TEMPLATE, str(error), "messages") from error


def _tools(text: str) -> Sequence[dict[str, Any]] | None:
    if not text:
        return None
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Refused(ErrorCode.INVALID, f"tools is not JSON: {error}", "tools") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _Refused(ErrorCode.INVALID, "tools is not a list of objects", "tools")
    return tools or None
