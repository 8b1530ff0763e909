"""Live sequences: what a worker delivered, what the client has not taken yet, and the one way each of them ended."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Finished, Usage


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a sequence ended without an answer; `field` is the request field at fault, when one is."""

    code: ErrorCode
    text: str
    field: str = ""


class Piece(Struct, frozen=True, gc=False):
    """What one sequence got since its client last took. `reason` is set on its last piece alone."""

    index: int
    text: str
    tokens: tuple[int, ...]
    reason: Literal["stop", "length"] | None


class Stream:
    """One live sequence, owned by its call. It ends exactly once: with `usage`, with `failure`, or cancelled.

    It keeps what a fresh worker would need to go on: its `submit`, and in `tokens` every id that was delivered. Its
    backlog is bounded by `limit`, its own `max_tokens` or the worker's context.
    """

    __slots__ = (
        "_on_change",
        "_taken",
        "_text",
        "ended",
        "failure",
        "first_at",
        "index",
        "last_at",
        "limit",
        "opened_at",
        "reason",
        "submit",
        "tokens",
        "usage",
    )

    def __init__(
        self, submit: Submit, index: int, *, limit: int, now: float, on_change: Callable[["Stream"], None]
    ) -> None:
        self.submit = submit
        self.index = index
        self.limit = limit
        self.opened_at = now
        self.first_at = 0.0
        self.last_at = now
        self.tokens: list[int] = []
        self.ended = False
        self.reason: Literal["stop", "length"] | None = None
        self.usage: Usage | None = None
        self.failure: Failure | None = None
        self._text: list[str] = []
        self._taken = 0
        self._on_change = on_change

    def push(self, delta: Delta | Finished) -> bool:
        """Add what a step brought. False when that is over the limit: a defect of the worker, and nothing was added."""
        if len(self.tokens) + len(delta.tokens) > self.limit:
            return False
        self.tokens += delta.tokens
        if delta.text:
            self._text.append(delta.text)
        self._on_change(self)
        return True

    def finish(self, reason: Literal["stop", "length"], usage: Usage) -> None:
        """The good end."""
        self.reason = reason
        self.usage = usage
        self._end()

    def fail(self, failure: Failure) -> None:
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
        self._on_change(self)

    def take(self, with_tokens: bool) -> Piece | None:
        """What the client has not had yet, in one piece however many steps it took; None when there is nothing."""
        text = "".join(self._text)
        self._text.clear()
        tokens: tuple[int, ...] = ()
        if with_tokens and self._taken < len(self.tokens):
            tokens = tuple(self.tokens[self._taken :])
            self._taken = len(self.tokens)
        if not (text or tokens or self.reason is not None):
            return None
        return Piece(self.index, text, tokens, self.reason)


class Call:
    """The sequences of one request, and the client's side of them: wait for a change, take, cancel."""

    def __init__(self, request: str, model: str, *, eager: bool, release: Callable[["Call"], None]) -> None:
        self.request = request
        self.model = model
        self.worker = ""
        self.fingerprint: str | None = None
        self.streams: Sequence[Stream] = ()
        self.failure: Failure | None = None
        """The failure of the first sequence that failed; the request fails with it."""
        self._live = 0
        self._ready: dict[int, Stream] = {}
        self._changed = False
        self._waiter: asyncio.Future[None] | None = None
        # A client that waits for the whole answer is not woken for each token.
        self._eager = eager
        self._release = release

    def attach(self, streams: Sequence[Stream], worker: str, fingerprint: str | None) -> None:
        """Give the call its sequences and say who computes them; done by the router, before they can change."""
        self.streams = streams
        self.worker = worker
        self.fingerprint = fingerprint
        self._live = len(streams)

    def changed(self, stream: Stream) -> None:
        """A sequence got something or ended."""
        self._ready[stream.index] = stream
        if stream.ended:
            self._live -= 1
            if stream.failure is not None and self.failure is None:
                self.failure = stream.failure
        if self._eager or self.ended:
            self._changed = True
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    @property
    def ended(self) -> bool:
        """Nothing more will come: every sequence ended, or one failed."""
        return self._live == 0 or self.failure is not None

    async def wait(self) -> None:
        """Until something changed since the last `take`: anything for an eager call, else its end."""
        # One waiter and no fairness: a bare future does, at a third of an `Event`'s cost.
        if not self._changed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take(self, with_tokens: bool) -> list[Piece]:
        """The new pieces of all sequences that have one."""
        self._changed = False
        pieces = []
        for stream in self._ready.values():
            piece = stream.take(with_tokens)
            if piece is not None:
                pieces.append(piece)
        self._ready.clear()
        return pieces

    def cancel_nowait(self) -> None:
        """Let go of everything, now. Synchronous, so that a `finally` under cancellation can call it; repeatable."""
        self._release(self)

    def usage(self, per_prompt: int) -> tuple[int, int, int]:
        """Prompt tokens, generated tokens and cached prompt tokens of the whole call. A prompt counts once, however
        many choices share it; so it is cached as far as it was for its first choice."""
        done = [stream.usage or Usage(0, 0) for stream in self.streams]
        prompts = done[::per_prompt]
        # What a sequence resumes may be cached beyond its prompt.
        cached = sum(min(usage.cached_tokens, usage.prompt_tokens) for usage in prompts)
        return sum(usage.prompt_tokens for usage in prompts), sum(usage.completion_tokens for usage in done), cached
