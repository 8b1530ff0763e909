"""A sequence as it was asked for, and what a worker may send of it. Pure.

The frames' own bounds (`protocol.bounds`) hold for any request. Within them, a worker could answer a request for four
tokens with megabytes. So each sequence is held to its own `Submit`, and what a worker's output takes of the gateway's
memory is bounded by what clients asked for.
"""

from collections.abc import Sequence

from actors.process.exit_cause import Origin
from actors.supervision.asked_prompt import AskedPrompt
from actors.supervision.asked_segments import AskedSegments
from actors.supervision.protocol_state import PeerMisbehaved
from actors.transport.rejections import Rejection
from protocol.bounds import MAX_PIECE_BYTES, MAX_STOP_CHARS, MAX_TOKENS
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Failed, Finished, Logprobs, PromptLogprobs, StartedStream, Usage
from protocol.request import ChatInput, FinishReason, TokensInput

HELD_BACK = MAX_STOP_CHARS + 8
"""Characters that earlier tokens may have left: part of a stop string, and incomplete characters at the end of the
prompt and of the resumed tokens."""


class PeerLied(PeerMisbehaved):
    """Raised for an event that is well formed, and neither what was asked for nor plausible. It is the worker's own
    fault, whatever requests it runs."""

    kind = Rejection.OUTPUT
    origin = Origin.MISBEHAVED


class AskedSequence:
    """A sequence from its `Submit` to its terminal event."""

    __slots__ = (
        "_chars",
        "_constrained",
        "_context",
        "_limits",
        "_logprobs",
        "_most",
        "_prompt",
        "_prompt_logprobs",
        "_segments",
        "_started",
        "_tokens",
    )

    def __init__(self, submit: Submit, context: int) -> None:
        """`context`: tokens of a prompt and its answer, as the worker reports them; 0 if it does not."""
        self._limits = submit.limits
        source = submit.input
        with_tools = (
            isinstance(source, ChatInput)
            and source.parse_tools
            and source.tools_json != ""
            and source.tool_choice.mode != "none"
        )
        # The forced end of the reasoning may be a token that is banned.
        self._constrained = (
            submit.grammar is not None
            or with_tools
            or submit.limits.reasoning_tokens is not None
            or bool(submit.sampling.allowed_tokens)
        )
        self._logprobs = submit.sampling.logprobs
        self._context = context or MAX_TOKENS
        self._most = min(MAX_TOKENS if submit.limits.max_tokens is None else submit.limits.max_tokens, self._context)
        self._prompt = len(submit.input.tokens) if isinstance(submit.input, TokensInput) else None
        self._tokens = len(submit.resume)  # resumed ones count as generated
        self._started = False
        self._chars = 0
        self._segments = AskedSegments(submit)
        # A sequence that is resumed gets none: they came before its first token.
        asked = submit.prompt_logprobs is not None and not submit.resume
        self._prompt_logprobs = AskedPrompt(submit, self._context) if asked else None

    def start(self, event: StartedStream) -> None:
        """Check the report of its first new token, of which there is one. Raises `PeerLied`."""
        if self._started:
            raise PeerLied(f"stream {event.stream} started twice")
        self._started = True

    @property
    def complete(self) -> bool:
        """It has all tokens that it may have."""
        return self._tokens >= self._most

    def take_prompt(self, event: PromptLogprobs) -> None:
        """Account for log-probabilities of the prompt. Raises `PeerLied`."""
        if self._prompt_logprobs is None:
            raise PeerLied(f"stream {event.stream} got log-probabilities of the prompt that were not asked for")
        try:
            self._prompt_logprobs.take(event)
        except ValueError as error:
            raise PeerLied(f"stream {event.stream} {error}") from None

    def take(self, event: Delta | Finished) -> None:
        """Account for output. Raises `PeerLied`."""
        if self._prompt_logprobs is not None:
            self._check_prompt(event, self._prompt_logprobs)
        self._tokens += len(event.tokens)
        self._chars += len(event.text)
        if event.segments:
            self._chars += self._take_segments(event)
        if self._tokens > self._most:
            raise PeerLied(f"stream {event.stream} got more than the {self._most} tokens asked for")
        # A request can choose the longest token each time, by its logit bias.
        if self._chars > HELD_BACK + MAX_PIECE_BYTES * self._tokens:
            raise PeerLied(f"stream {event.stream} got {self._chars} characters of text in {self._tokens} tokens")
        if self._logprobs is not None or event.logprobs:
            self._take_logprobs(event.stream, event.tokens, event.logprobs)

    def _check_prompt(self, event: Delta | Finished, prompt: AskedPrompt) -> None:
        try:
            if isinstance(event, Delta):
                prompt.answer_begins()
            elif event.reason != "cancelled":
                prompt.end(event.usage.prompt_tokens)
        except ValueError as error:
            raise PeerLied(f"stream {event.stream} {error}") from None

    def _take_segments(self, event: Delta | Finished) -> int:
        """Return the number of characters."""
        if event.text:
            raise PeerLied(f"stream {event.stream} got text beside segments")
        try:
            return self._segments.take(event.segments)
        except ValueError as error:
            raise PeerLied(f"stream {event.stream} {error}") from None

    def _take_logprobs(self, stream: int, tokens: Sequence[int], logprobs: Sequence[Logprobs]) -> None:
        if self._logprobs is None:
            raise PeerLied(f"stream {stream} got log-probabilities that were not asked for")
        if [each.sampled.token for each in logprobs] != list(tokens):
            raise PeerLied(f"stream {stream} got log-probabilities of other tokens than its own")
        for each in logprobs:
            if len(each.top) > self._logprobs:
                raise PeerLied(f"stream {stream} got {len(each.top)} most likely tokens, {self._logprobs} asked for")

    def finish(self, event: Finished, cancelled: bool) -> None:
        """Account for its last output, and check its end. Raises `PeerLied`."""
        self.take(event)
        if event.reason == "cancelled":
            if not cancelled:
                raise PeerLied(f"stream {event.stream} was cancelled unasked")
            return  # nobody reads the usage
        self._check_usage(event.stream, event.usage)
        self._check_reason(event.stream, event.reason, event.usage)
        self._check_stop(event)

    def _check_usage(self, stream: int, usage: Usage) -> None:
        if usage.completion_tokens != self._tokens:
            raise PeerLied(f"stream {stream} ended with {usage.completion_tokens} tokens, and {self._tokens} came")
        if usage.prompt_tokens > self._context or self._prompt not in (None, usage.prompt_tokens):
            raise PeerLied(f"stream {stream} ended with {usage.prompt_tokens} tokens of its prompt")
        if usage.reasoning_tokens > usage.completion_tokens:
            raise PeerLied(f"stream {stream} ended with {usage.reasoning_tokens} tokens of reasoning")
        if usage.cached_tokens > usage.prompt_tokens + self._tokens:
            raise PeerLied(f"stream {stream} ended with {usage.cached_tokens} cached tokens")

    def _check_stop(self, event: Finished) -> None:
        if event.stop not in (None, *self._limits.stop, *self._limits.stop_ids):
            raise PeerLied(f"stream {event.stream} ended at a stop that was not asked for")
        if event.stop is not None and event.reason == "length":
            raise PeerLied(f"stream {event.stream} ended both for its length and at a stop")

    def _check_reason(self, stream: int, reason: FinishReason, usage: Usage) -> None:
        limits = self._limits
        stoppable = limits.stop or self._constrained  # the end of a constraint stops an answer, whatever its length
        if reason == "length" and not self.complete and usage.prompt_tokens + self._tokens < self._context:
            raise PeerLied(f"stream {stream} ended for its length after {self._tokens} of {self._most} tokens")
        if reason == "tool_calls" and not self._segments.may_end:
            raise PeerLied(f"stream {stream} ended for tool calls, and got none that were asked for")
        stoppable = stoppable or (reason == "tool_calls" and self._segments.single)
        ended = reason in ("stop", "tool_calls")
        endless = limits.ignore_eos and not limits.stop_ids
        if ended and not stoppable and (endless or self._tokens < limits.min_tokens):
            raise PeerLied(f"stream {stream} stopped after {self._tokens} tokens, where nothing may stop it")

    def fail(self, event: Failed) -> None:
        """Check its failure. Raises `PeerLied`."""
        unasked = event.code is ErrorCode.DEADLINE and not self._limits.deadline_ms
        if unasked or event.code is ErrorCode.QUARANTINED:
            raise PeerLied(f"stream {event.stream} failed with {event.code}, which it cannot")
