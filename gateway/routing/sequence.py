"""Live sequences: what workers delivered, what the client has not taken yet, and how each sequence ended."""

import math
from array import array
from bisect import bisect_right

import structlog
from msgspec.structs import replace

from gateway.answer_budget import HeldAnswer
from gateway.generation.answer_size import TEXT_BYTES, TOKEN_BYTES, logprobs_bytes, output_bytes
from gateway.generation.delta import OutputDelta, Stopper, StopReason, TextDelta, VectorDelta
from gateway.generation.parsed_output import Output, parsed_deltas
from gateway.generation.prompt_output import PromptOutput, taken_bytes
from gateway.routing.admission.terms import NO_TERMS, AdmissionTerms
from gateway.routing.failure import Cause, RequestFailure, WorkerFailure
from gateway.routing.live_request import LiveRequest
from gateway.routing.prefixes.prompt_prefix import PromptPrefix
from gateway.tracing.traced_request import Attempt, Replay
from protocol.commands import Submit
from protocol.events import (
    Delta,
    Finished,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    StartedStream,
    TextSegment,
    Usage,
)
from protocol.request import TokensInput

Report = Logprobs | PromptToken
"""The log-probabilities at one position of an answer, or of its prompt."""

MAX_REPLAYS = 4
"""Gaps of a sequence that are kept for its trace, and one more of its attempts on workers."""

_log = structlog.get_logger("gateway.routing.sequence")


class LiveSequence:
    """One live sequence, owned by its request. It ends exactly once: with `usage`, with `failure`, or cancelled.

    It keeps what another worker needs to continue it: its `submit`, and in `tokens` every id that was delivered. The
    worker may change; what was delivered stays. The backlog is bounded by `limit`: its own `max_tokens`, or the context
    of its worker.
    """

    __slots__ = (
        "_context",
        "_created",
        "_logprobs",
        "_output",
        "_output_ends",
        "_parsed",
        "_prompt",
        "_taken",
        "attempts",
        "begun",
        "cause",
        "charged",
        "continued",
        "ended",
        "failure",
        "failures",
        "first_at",
        "index",
        "kind",
        "last_at",
        "limit",
        "loss",
        "opened_at",
        "order",
        "prefix",
        "queued_s",
        "reason",
        "replays",
        "request",
        "since_replay",
        "stopped_by",
        "submit",
        "terms",
        "tokens",
        "uncached",
        "usage",
        "vector",
        "waited",
        "worker",
    )

    def __init__(
        self,
        submit: Submit,
        index: int,
        request: LiveRequest,
        *,
        now: float,
        echo: bool = False,
        terms: AdmissionTerms = NO_TERMS,
        prefix: PromptPrefix | None = None,
    ) -> None:
        """With `echo` the client gets the text of the prompt, too. `prefix` is shared by the sequences of one
        prompt."""
        self.submit = submit
        self.terms = terms
        self.prefix = prefix or PromptPrefix()
        self.uncached = float(terms.prompt_tokens)
        """Estimated tokens of its prompt that have to be computed, for its place among those that wait."""
        self.charged = 0.0
        """Cost of the prompt that its client was charged when it got its first worker."""
        self.index = index
        self.request = request
        self.order = submit.stream
        """Its position among all sequences in the order of admission."""
        self.limit = submit.limits.max_tokens or 0
        self._context = 0
        """Tokens of a prompt and its answer on its worker."""
        self.opened_at = now
        self.first_at = 0.0
        self.last_at = now
        self.tokens: list[int] = []
        self.ended = False
        self.reason: StopReason | None = None
        self.stopped_by: Stopper | None = None
        self.usage: Usage | None = None
        self.failure: RequestFailure | None = None
        self.worker = ""
        """The worker that computes it; empty while it waits for one."""
        self.queued_s = 0.0
        """Seconds until its first worker got it."""
        self.begun = False
        """A worker has begun to compute it, as far as is known: the bound on the time for which it waits ends."""
        self.waited = False
        """It has been without a worker, or was moved: a full queue of a worker is no reason to refuse it now."""
        self.kind: tuple[str, str] | None = None
        """Backend and config digest of its first worker: workers of equal kinds compute equal tokens."""
        self.continued = False
        """A worker of another kind continued it."""
        self.cause: Cause | None = None
        """Why it lost its last worker, until the next one delivers something."""
        self.replays: list[Replay] = []
        """The gaps after which another worker continued it: of more than `MAX_REPLAYS`, the first ones and the last."""
        self.attempts: list[Attempt] = []
        """Its workers so far: of more than `MAX_REPLAYS` + 1, the first ones and the last."""
        self.loss = ""
        self.failures: tuple[WorkerFailure, ...] = ()
        """The worker failures during which it ran, in a row, until it is cleared. See
        `gateway.routing.failure_attribution`, which bounds their number."""
        self.since_replay = 0
        """Tokens since the last of these failures."""
        self.vector = b""
        """The vector of its prompt, until the client takes it."""
        self._output: list[Output] = []
        self._output_ends = array("I")
        """For each of these, the number of tokens when it was complete."""
        self._parsed = False
        """There is something else than text among them."""
        self._logprobs: list[Logprobs] = []
        self._created: StartedStream | None = None
        """The first report of tokens of a pinned prefix that were computed."""
        self._taken = 0
        reported = submit.prompt_logprobs is not None
        self._prompt = PromptOutput(submit.input, echo=echo) if echo or reported else None

    @property
    def had_turn(self) -> bool:
        """It has been on a worker."""
        return self.kind is not None

    @property
    def queue_s(self) -> float:
        """Seconds for which it waited: for a worker with room, and there for a slot, if it ended well."""
        return self.queued_s + (self.usage.queue_ms / 1000 if self.usage is not None else 0.0)

    @property
    def cache_counts(self) -> tuple[int, int]:
        """Tokens of its prompt that were cached, and those of a pinned prefix that were computed for it: by the worker
        that has computed them, if it has moved to another one since, which has them in its cache."""
        if self.usage is None:
            return 0, 0
        known = self._created or self.usage
        # What it resumes may be cached beyond its prompt.
        return min(known.cached_tokens, self.usage.prompt_tokens), known.created_tokens

    @property
    def sparse_kept_tokens(self) -> int:
        """Tokens of its prompt that were computed, where others were left out; 0 where none were. Known from its first
        token on: what ends an answer that its text has ended may not say it."""
        if self.usage is None:
            return 0
        kept = self.submit.kept or ()
        count = self.usage.sparse_kept_tokens or sum(kept[1::2]) - sum(kept[::2])
        return min(count, self.usage.prompt_tokens)

    def submit_as(self, number: int, now: float, *, suspect: bool = False) -> Submit:
        """The `Submit` for the next worker, under a number that no worker has seen yet.

        It has the delivered tokens, which count as generated and are not sent again, and the rest of the deadline and
        of the time for which it may wait.
        """
        limits = self.submit.limits
        if limits.deadline_ms:
            left = limits.deadline_ms - int((now - self.opened_at) * 1000)
            limits = replace(limits, deadline_ms=max(1, left))
        until = self.terms.queue_until
        if not self.begun and until < math.inf:
            limits = replace(limits, queue_ms=max(1, math.ceil((until - now) * 1000)))
        # What is reported of the prompt came before the first token.
        reported = None if self.tokens else self.submit.prompt_logprobs
        resume = tuple(self.tokens)
        return replace(
            self.submit, stream=number, limits=limits, resume=resume, prompt_logprobs=reported, suspect=suspect
        )

    def place(
        self, submit: Submit, worker: str, kind: tuple[str, str], context: int, *, incarnation: int, now: float
    ) -> None:
        """Note that an incarnation of a worker of this kind, with a context of so many tokens, got `submit`."""
        del self.attempts[MAX_REPLAYS:]
        self.attempts.append(Attempt(worker, incarnation, now, len(self.tokens)))
        self.submit = replace(self.submit, stream=submit.stream)
        self._context = context
        most = submit.limits.max_tokens
        self.limit = context if most is None else most
        self.worker = worker
        if not self.tokens and not self.prompt_tokens:
            self.kind = kind
        self.continued = self.continued or kind != self.kind

    def started(self, event: StartedStream, now: float) -> None:
        """Note how it came to its first token on its worker."""
        attempt = self.attempts[-1]
        attempt.started, attempt.first_at = event, now
        if self.submit.kept is None:
            self.submit = replace(self.submit, kept=event.kept)
        if event.created_tokens and self._created is None:
            self._created = event

    def leave(self, cause: Cause, loss: str, now: float) -> None:
        """Note that it has no worker any more; `loss` is the reason in words."""
        if self.attempts:
            attempt = self.attempts[-1]
            attempt.lost_at, attempt.last_at, attempt.cause = now, self.last_at, str(cause)
        _log.info(
            "stream_lost",
            request=self.request.request_id,
            choice=self.index,
            worker=self.worker,
            cause=str(cause),
            reason=loss,
        )
        self.worker = ""
        self.cause = cause
        self.loss = loss

    def push_prompt(self, event: PromptLogprobs) -> bool:
        """Add what was reported of the prompt, unless an earlier worker reported it. False, with nothing added, if it
        was not asked for, which is a bug of the worker."""
        prompt = self._prompt
        if prompt is None or self.submit.prompt_logprobs is None or self.tokens:
            return False
        size = prompt.push(event.start, event.tokens, self._context)
        if size is None:
            return False
        self._grow(size + prompt.begin())
        return True

    def push(self, delta: Delta | Finished) -> bool:
        """Add what a step delivered. False, with nothing added, when that is over the limit, which is a bug of the
        worker."""
        if len(self.tokens) + len(delta.tokens) > self.limit:
            return False
        if isinstance(delta, Finished) and delta.reason != "cancelled":
            if bool(delta.vector) != (self.submit.pooled is not None) or len(delta.vector) % 4:
                return False
            self.vector = delta.vector
        self.tokens += delta.tokens
        size = TOKEN_BYTES * len(delta.tokens) + len(self.vector)
        if delta.text:
            self._output.append(delta.text)
            self._output_ends.append(len(self.tokens))
            size += TEXT_BYTES + len(delta.text)
        elif delta.segments:
            self._parsed = True
            output = [segment.text if isinstance(segment, TextSegment) else segment for segment in delta.segments]
            self._output += output
            self._output_ends.extend([len(self.tokens)] * len(output))
            size += output_bytes(output)
        if delta.logprobs:
            self._logprobs += delta.logprobs
            size += logprobs_bytes(delta.logprobs)
        if self._prompt is not None:
            size += self._prompt.begin()
        self._grow(size)
        return True

    def _grow(self, size: int) -> None:
        request = self.request
        request.changed(self.index)
        if request.answer is not None:
            request.answer.grow(size)

    def finish(self, reason: StopReason, usage: Usage, stopped_by: Stopper | None = None) -> None:
        """End it well."""
        self.reason = reason
        self.stopped_by = stopped_by
        self.usage = usage
        self._end()

    def fail(self, failure: RequestFailure) -> None:
        """End it with a failure."""
        self.failure = failure
        self._end()

    def cancel(self) -> None:
        """End it without an answer, as its client is gone."""
        self._end()

    def _end(self) -> None:
        if self.ended:
            raise RuntimeError(f"stream {self.submit.stream} ended twice")
        self.ended = True
        # The prompt is not kept while the client takes the answer, which may be minutes.
        self.submit = replace(self.submit, input=TokensInput(()))
        self.request.sequence_ended(self.index, self.failure)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt that were reported so far."""
        return 0 if self._prompt is None else self._prompt.count

    @property
    def unread(self) -> bool:
        """The client has yet to take something that was delivered."""
        more = self._taken < len(self.tokens) or bool(self._output) or bool(self._logprobs)
        return more or (self._prompt is not None and self._prompt.is_unread())

    def take_into(self, deltas: list[OutputDelta], with_tokens: bool, room: int) -> int:
        """Add what the client has not had yet, of at most `room` tokens: one delta for each kind of output, however
        many steps it took. Returns the number of tokens."""
        if self._prompt is None or not self._prompt.is_unread():
            return self._take_output(deltas, with_tokens, room)
        before = len(deltas)
        spent = self._prompt.take_into(deltas, self.index, room)
        answer = self._stream_answer()
        if answer is not None:
            answer.shrink(taken_bytes(deltas[before:]))
        if self._prompt.is_unread():
            return spent
        return spent + self._take_output(deltas, with_tokens, room - spent)

    def _take_output(self, deltas: list[OutputDelta], with_tokens: bool, room: int) -> int:
        if self.vector:
            deltas.append(VectorDelta(self.index, self.vector))
            self.vector = b""
        begin, end = self._taken, len(self.tokens)
        last = end - begin <= room
        if last:
            output, logprobs = self._output, tuple(self._logprobs)
            output_ends = self._output_ends[:] if self._parsed else ()
            self._output = []
            del self._output_ends[:]
            if logprobs:
                self._logprobs.clear()
        else:
            end = begin + room
            steps = bisect_right(self._output_ends, end)
            output, logprobs = self._output[:steps], tuple(self._logprobs[:room])
            output_ends = self._output_ends[:steps] if self._parsed else ()
            del self._output[:steps], self._output_ends[:steps], self._logprobs[:room]
        tokens = tuple(self.tokens[begin:end]) if with_tokens else ()
        self._taken = end
        reason, stopped_by = (self.reason, self.stopped_by) if last else (None, None)
        if self._parsed:
            size = output_bytes(output)
            ends = [each - begin for each in output_ends]
            key = self.request.call_key
            deltas += parsed_deltas(self.index, output, ends, tokens, logprobs, reason, stopped_by, key)
        else:
            text = "".join(output)  # type: ignore[arg-type]  # only text, as nothing was parsed
            size = TEXT_BYTES * len(output) + len(text)
            if text or tokens or reason is not None:
                deltas.append(TextDelta(self.index, text, tokens, logprobs, reason, stopped_by))
        answer = self._stream_answer()
        if answer is not None:
            answer.shrink(size + logprobs_bytes(logprobs) if logprobs else size)
        return end - begin

    def _stream_answer(self) -> HeldAnswer | None:
        """Return what counts the memory of the answer, if the client frees what it takes of a stream. None if it frees
        nothing: what it takes need not be counted then, which takes long for many log-probabilities."""
        request = self.request
        return request.answer if request.streamed and not request.output.kept else None

    def discard(self) -> list[Report]:
        """Drop what the client has not taken, which it will not get. Returns the log-probabilities of it."""
        self._taken = len(self.tokens)
        self.vector = b""
        self._output.clear()
        del self._output_ends[:]
        reports: list[Report] = [*self._logprobs]
        self._logprobs = []
        if self._prompt is not None:
            reports += self._prompt.discard()
        return reports
