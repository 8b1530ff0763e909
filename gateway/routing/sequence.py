"""Live sequences: what a worker delivered, what the client has not taken yet, and the one way each of them ended."""

import structlog
from msgspec.structs import replace

from gateway.generation.delta import OutputDelta, StopReason, TextDelta
from gateway.routing.failure import Cause, SequenceFailure, WorkerFailure
from gateway.routing.live_request import LiveRequest
from protocol.commands import Submit
from protocol.events import Delta, Finished, Logprobs, Usage
from protocol.request import TokensInput

_log = structlog.get_logger("gateway.routing.sequence")


class Stream:
    """One live sequence, owned by its call. It ends exactly once: with `usage`, with `failure`, or cancelled.

    It keeps what another worker needs to go on with it: its `submit`, and in `tokens` every id that was delivered. What
    it is computed by may change; what it has delivered stays. Its backlog is bounded by `limit`, its own `max_tokens`
    or its worker's context.
    """

    __slots__ = (
        "_logprobs",
        "_taken",
        "_text",
        "call",
        "cause",
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
        "reason",
        "since_replay",
        "submit",
        "tokens",
        "usage",
        "waited",
        "worker",
    )

    def __init__(self, submit: Submit, index: int, call: LiveRequest, *, now: float) -> None:
        self.submit = submit
        self.index = index
        self.call = call
        self.order = submit.stream
        """Its place among all sequences in the order of their admission."""
        self.limit = submit.limits.max_tokens or 0
        self.opened_at = now
        self.first_at = 0.0
        self.last_at = now
        self.tokens: list[int] = []
        self.ended = False
        self.reason: StopReason | None = None
        self.usage: Usage | None = None
        self.failure: SequenceFailure | None = None
        self.worker = ""
        """The worker that computes it; empty while it waits for one."""
        self.waited = False
        """It has been without a worker: no worker's full queue is reason to refuse it now."""
        self.kind: tuple[str, str] | None = None
        """Backend and config digest of the worker that computed it first: equal kinds compute equal tokens."""
        self.continued = False
        """A worker of another kind went on with it."""
        self.cause: Cause | None = None
        """Why it lost its last worker, until the next one brings something."""
        self.loss = ""
        self.failures: tuple[WorkerFailure, ...] = ()
        """The worker failures during which it ran, in a row, until it is cleared. See
        `gateway.routing.failure_attribution`, which bounds their number."""
        self.since_replay = 0
        """Tokens that came since the last of them."""
        self._text: list[str] = []
        self._logprobs: list[Logprobs] = []
        self._taken = 0

    def submit_as(self, number: int, now: float) -> Submit:
        """What a worker is told in order to compute it, under a number that no worker has seen yet.

        The tokens that were delivered go along: they count as generated and do not come again. Of its time it has what
        is left.
        """
        limits = self.submit.limits
        if limits.deadline_ms:
            left = limits.deadline_ms - int((now - self.opened_at) * 1000)
            limits = replace(limits, deadline_ms=max(1, left))
        return replace(self.submit, stream=number, limits=limits, resume=tuple(self.tokens))

    def place(self, submit: Submit, worker: str, kind: tuple[str, str], context: int) -> None:
        """A worker of this kind got `submit`. It holds `context` tokens."""
        self.submit = replace(self.submit, stream=submit.stream)
        self.limit = submit.limits.max_tokens or context
        self.worker = worker
        if not self.tokens:
            self.kind = kind
        self.continued = self.continued or kind != self.kind

    def leave(self, cause: Cause, loss: str) -> None:
        """It has no worker any more; `loss` says why in words."""
        _log.info(
            "stream_lost",
            request=self.call.request,
            choice=self.index,
            worker=self.worker,
            cause=str(cause),
            reason=loss,
        )
        self.worker = ""
        self.cause = cause
        self.loss = loss

    def push(self, delta: Delta | Finished) -> bool:
        """Add what a step brought. False when that is over the limit: a defect of the worker, and nothing was added."""
        if len(self.tokens) + len(delta.tokens) > self.limit:
            return False
        self.tokens += delta.tokens
        if delta.text:
            self._text.append(delta.text)
        if delta.logprobs:
            self._logprobs += delta.logprobs
        self.call.changed(self.index)
        return True

    def finish(self, reason: StopReason, usage: Usage) -> None:
        """The good end."""
        self.reason = reason
        self.usage = usage
        self._end()

    def fail(self, failure: SequenceFailure) -> None:
        """The bad end."""
        self.failure = failure
        self._end()

    def cancel(self) -> None:
        """The end that nobody is told of: the client is gone."""
        self._end()

    def _end(self) -> None:
        if self.ended:
            raise RuntimeError(f"stream {self.submit.stream} ended twice")
        self.ended = True
        # Whoever has yet to take the answer may take minutes.
        self.submit = replace(self.submit, input=TokensInput(()))
        self.call.sequence_ended(self.index, self.failure)

    def take_into(self, deltas: list[OutputDelta], with_tokens: bool) -> None:
        """Add what the client has not had yet: one delta for each kind of output, however many steps it took."""
        text = "".join(self._text)
        self._text.clear()
        tokens: tuple[int, ...] = ()
        if with_tokens and self._taken < len(self.tokens):
            tokens = tuple(self.tokens[self._taken :])
            self._taken = len(self.tokens)
        logprobs: tuple[Logprobs, ...] = ()
        if self._logprobs:
            logprobs = tuple(self._logprobs)
            self._logprobs.clear()
        if text or tokens or self.reason is not None:
            deltas.append(TextDelta(self.index, text, tokens, logprobs, self.reason))
