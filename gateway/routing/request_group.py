"""The sequences of one request as its client sees them: news of any of them, their pieces, and the end of all."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.body_budget import HeldBody
from gateway.routing.sequence import Failure, Piece, Stream
from protocol.events import Usage


class Call:
    """The sequences of one request, and the client's side of them: wait for a change, take, cancel."""

    def __init__(
        self, request: str, model: str, body: HeldBody, *, eager: bool, release: Callable[["Call"], None]
    ) -> None:
        self.request = request
        self.model = model
        self.body = body
        """What its sequences were made of."""
        self.worker = ""
        """The worker that last took one of its sequences."""
        self.fingerprint: str | None = None
        self.streams: Sequence[Stream] = ()
        self.deadline: asyncio.TimerHandle | None = None
        self.failure: Failure | None = None
        """The failure of the first sequence that failed; the request fails with it."""
        self._live = 0
        self._waiting = 0
        self._ready: dict[int, Stream] = {}
        self._changed = False
        self._waiter: asyncio.Future[None] | None = None
        # A client that waits for the whole answer is not woken for each token.
        self._eager = eager
        self._release = release

    def attach(self, streams: Sequence[Stream]) -> None:
        """Give the call its sequences; done by the router, before they can change. The last one to end lets go of the
        body."""
        self.streams = streams
        self._live = len(streams)
        self.body.need()

    def placed(self, worker: str, digest: str) -> None:
        """Some of its sequences went to a worker. The fingerprint is that of the first."""
        if not self.worker and digest:
            self.fingerprint = f"fp_{digest[:16]}"
        self.worker = worker

    def suspended(self, count: int) -> None:
        """So many of its sequences more (or fewer) wait for a worker."""
        self._waiting += count
        if count > 0 and self._eager:
            self._wake()

    @property
    def waiting(self) -> bool:
        """Some of its sequences have no worker at the moment."""
        return self._waiting > 0

    @property
    def continued(self) -> bool:
        """A worker unlike the first one went on with one of its sequences: its tokens may differ from there on."""
        return any(stream.continued for stream in self.streams)

    def changed(self, stream: Stream) -> None:
        """A sequence got something or ended."""
        self._ready[stream.index] = stream
        if stream.ended:
            self._live -= 1
            if not self._live:
                self.body.release()
            if stream.failure is not None and self.failure is None:
                self.failure = stream.failure
        if self._eager or self.ended:
            self._changed = True
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def ended(self) -> bool:
        """Nothing more will come: every sequence ended, or one failed."""
        return self._live == 0 or self.failure is not None

    async def wait(self) -> bool:
        """Until something changed since the last `take`: anything for an eager call, else its end. False when an eager
        call merely began to wait for a worker."""
        # One waiter and no fairness: a bare future does, at a third of an `Event`'s cost.
        if not self._changed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._changed

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
