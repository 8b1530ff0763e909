"""The sequences of one request as its client sees them: news of any of them, their pieces, and the end of all."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.body_budget import HeldBody
from gateway.routing.delta import OutputDelta, TokenCounts
from gateway.routing.generation_request import OutputOptions
from gateway.routing.sequence import Failure, Stream
from protocol.events import Usage


class Call:
    """The sequences of one request, and the client's side of them: wait for a change, take, cancel."""

    def __init__(
        self, request: str, model: str, output: OutputOptions, body: HeldBody, release: Callable[["Call"], None]
    ) -> None:
        self.request = request
        self.model = model
        self.output = output
        self.body = body
        """What its sequences were made of."""
        self.worker = ""
        """The worker that last took one of its sequences."""
        self.config_digest = ""
        """Of the first worker that took one of its sequences."""
        self.streams: Sequence[Stream] = ()
        self.deadline: asyncio.TimerHandle | None = None
        self.failure: Failure | None = None
        """The failure of the first sequence that failed; the request fails with it."""
        self._stream = output.stream
        self._with_tokens = output.with_tokens
        self._live = 0
        self._waiting = 0
        self._ready: dict[int, Stream] = {}
        self._changed = False
        self._waiter: asyncio.Future[None] | None = None
        self._release = release

    def attach(self, streams: Sequence[Stream]) -> None:
        """Give the call its sequences; done by the router, before they can change. The last one to end lets go of the
        body."""
        self.streams = streams
        self._live = len(streams)
        self.body.need()

    def placed(self, worker: str, digest: str) -> None:
        """Some of its sequences went to a worker with this config digest."""
        if not self.worker:
            self.config_digest = digest
        self.worker = worker

    def suspended(self, count: int) -> None:
        """So many of its sequences more (or fewer) wait for a worker."""
        self._waiting += count
        if count > 0 and self._stream:
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
        if self._stream or self.ended:
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
        """Wait for a change since the last `take`: any one of a streamed answer, the end of a whole one. False when a
        streamed answer merely began to wait for a worker."""
        # One waiter and no fairness: a bare future does, at a third of an `Event`'s cost.
        if not self._changed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._changed

    def take(self) -> list[OutputDelta]:
        """The new deltas of all sequences."""
        self._changed = False
        deltas: list[OutputDelta] = []
        for stream in self._ready.values():
            stream.take_into(deltas, self._with_tokens)
        self._ready.clear()
        return deltas

    def cancel_nowait(self) -> None:
        """Let go of everything, now. Synchronous, so that a `finally` under cancellation can call it; repeatable."""
        self._release(self)

    def token_counts(self) -> TokenCounts:
        """The counts of the whole request. A prompt is cached as far as it was for the first of its sequences."""
        done = [stream.usage or Usage(0, 0) for stream in self.streams]
        prompts = done[:: self.output.per_prompt]
        return TokenCounts(
            prompt=sum(usage.prompt_tokens for usage in prompts),
            completion=sum(usage.completion_tokens for usage in done),
            # What a sequence resumes may be cached beyond its prompt.
            cached=sum(min(usage.cached_tokens, usage.prompt_tokens) for usage in prompts),
        )
