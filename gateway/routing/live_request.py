"""State that the live sequences of one request share, and the wake-up of its client."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.answer_budget import HeldAnswer
from gateway.body_budget import HeldBody
from gateway.generation.request import OutputOptions
from gateway.routing.failure import RequestFailure


class LiveRequest(ABC):
    """The base of `gateway.routing.request_group.RequestGroup`, as the sequences of the group know it."""

    def __init__(self, request_id: str, model: str, output: OutputOptions, body: HeldBody, count: int) -> None:
        """`count` sequences need the `body`, until the last of them has ended."""
        self.request_id = request_id
        self.model = model
        self.adapter = ""
        """The adapter of the model that it has named; empty for none. Set by the router."""
        self.output = output
        self.body = body.need()
        self.answer: HeldAnswer | None = None
        """Counts the memory of what was generated, and not taken yet if the answer is streamed. Set by the router."""
        self.worker = ""
        """The worker that last took one of its sequences."""
        self.config_digest = ""
        """The digest of the first worker that took one of its sequences."""
        self.failure: RequestFailure | None = None
        """The failure of the first sequence that failed; the request fails with it."""
        self.streamed = output.stream
        """Its client takes the answer while it is generated."""
        self.call_key = secrets.token_hex(12)
        """The ids of tool calls are made of it. Another gateway that computes the same answer sets the same one."""
        self._live = count
        self._on_ended: Callable[[], None] | None = None
        self._waiting = 0
        self._ready: dict[int, None] = {}
        """The sequences that have news, by their index, the oldest first."""
        self._changed = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def named(self) -> str:
        """The name of its model in the answer: that of the adapter, if it has one."""
        return self.adapter or self.model

    @abstractmethod
    def cancel_nowait(self) -> None:
        """Cancel what still lives of it. Synchronous, for a `finally` under cancellation; repeatable."""

    @property
    def waiting(self) -> bool:
        """True while some of its sequences have no worker."""
        return self._waiting > 0

    @property
    def ended(self) -> bool:
        """True when nothing more will come: every sequence ended, or one failed."""
        return self._live == 0 or self.failure is not None

    def when_ended(self, call: Callable[[], None]) -> None:
        """Set the function that is called once, when the last sequence has ended: now, if it has."""
        self._on_ended = call
        if not self._live:
            call()

    def placed(self, worker: str, digest: str) -> None:
        """Note that some of its sequences went to a worker with this config digest."""
        if not self.worker:
            self.config_digest = digest
        self.worker = worker

    def suspended(self) -> None:
        """Note that one more of its sequences waits for a worker."""
        self._waiting += 1
        if self.streamed:
            self._wake()

    def resumed(self) -> None:
        """Note that one fewer of its sequences waits for a worker."""
        self._waiting -= 1

    def changed(self, index: int) -> None:
        """Note that a sequence got something. The client of a whole answer is not woken for each token."""
        self._ready[index] = None
        if self.streamed:
            self._changed = True
            self._wake()

    def sequence_ended(self, index: int, failure: RequestFailure | None) -> None:
        """Note that a sequence ended, maybe with a failure."""
        self._ready[index] = None
        self._ended(1)
        self.failure = self.failure or failure
        if self.streamed or self.ended:
            self._changed = True
            self._wake()

    def never_made(self, count: int) -> None:
        """Note that so many of its sequences are not made any more."""
        if count:
            self._ended(count)

    def _ended(self, count: int) -> None:
        self._live -= count
        if not self._live:
            self.body.release()
            if self._on_ended is not None:
                self._on_ended()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
